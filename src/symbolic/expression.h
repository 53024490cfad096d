// The inside of a Dim: a sum of integer multiples of products of atoms.
#pragma once

#include <map>
#include <string>

#include "symbolic/dim.h"

namespace lowtide::dim_internal {

enum class AtomKind { kSymbol, kFloorDiv, kMod, kMin, kMax };

// A symbol (name) or a function of two Dims (left, right).
struct Atom {
  AtomKind kind = AtomKind::kSymbol;
  std::string name;
  Dim left, right;
};
bool operator==(const Atom& a, const Atom& b);
bool operator<(const Atom& a, const Atom& b);

using Monomial = std::map<Atom, int64_t>;  // atom → power >= 1; empty: the constant term

struct Expression {
  std::map<Monomial, int64_t> terms;  // monomial → factor, never 0
};

}  // namespace lowtide::dim_internal
