// Symbolic integers: sizes as polynomials over named symbols, with floordiv, mod, min and max.
// A Dim is an immutable value in canonical form, so equality of text is equality of value: `s*2 + s == 3*s`.
// Constants live inline; other values share an immutable expression.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace lowtide {

class Dim;

namespace dim_internal {
struct Expression;
}

class Dim {
 public:
  constexpr Dim() = default;
  Dim(int64_t value) : value_(value) {}
  Dim(int value) : value_(value) {}
  // A symbol: an input's size, named after the first input that carries it ("input_ids_dim1").
  static Dim symbol(std::string name);

  bool is_constant() const { return expression_ == nullptr; }
  // The value; an internal error if not constant.
  int64_t constant() const;
  bool is(int64_t value) const { return is_constant() && value_ == value; }

  friend Dim operator+(const Dim& a, const Dim& b);
  friend Dim operator-(const Dim& a, const Dim& b);
  friend Dim operator*(const Dim& a, const Dim& b);
  Dim operator-() const { return Dim(0) - *this; }
  friend bool operator==(const Dim& a, const Dim& b);
  // A total order of the canonical forms (not of the values), for sorting and maps.
  friend bool operator<(const Dim& a, const Dim& b);

  const dim_internal::Expression* expression() const { return expression_.get(); }

 private:
  friend Dim make_dim(dim_internal::Expression expression);
  int64_t value_ = 0;
  std::shared_ptr<const dim_internal::Expression> expression_;
};

Dim floordiv(const Dim& a, const Dim& b);  // rounds towards minus infinity; exact polynomial division where it divides
Dim mod(const Dim& a, const Dim& b);       // a - b*floordiv(a, b)
Dim min(const Dim& a, const Dim& b);
Dim max(const Dim& a, const Dim& b);

using Shape = std::vector<Dim>;
Dim numel(const Shape& shape);

std::string to_string(const Dim& dim);  // "input_ids_dim0*(input_ids_dim1 - 1)" and the like; parse_dim reads it back
std::ostream& operator<<(std::ostream& out, const Dim& dim);
Dim parse_dim(std::string_view text);  // Error(kInvalidGraph) with the position

void collect_symbols(const Dim& dim, std::set<std::string>& names);
using DimValues = std::map<std::string, int64_t, std::less<>>;
int64_t evaluate(const Dim& dim, const DimValues& values);  // Error(kInvalidArgument) for a symbol without value
Dim substitute(const Dim& dim, const std::map<std::string, Dim, std::less<>>& replacements);

// What is known of the symbols: closed intervals.
struct DimRange {
  int64_t low = 0;
  int64_t high = std::numeric_limits<int64_t>::max();
  friend bool operator==(const DimRange&, const DimRange&) = default;
};
using DimRanges = std::map<std::string, DimRange, std::less<>>;
DimRange range_of(const Dim& dim, const DimRanges& ranges);  // conservative interval arithmetic, saturating

// The same value with the minima, maxima, quotients and remainders worked out that the ranges decide: max(0, 1 - s) is
// 0 for s >= 1.
Dim simplify(const Dim& dim, const DimRanges& ranges);

// Short integer programs for a Program, which knows no Dim: a postfix list over the symbols in the order of `symbols`.
// Encoding: base/size_code.h.
std::vector<int64_t> compile_dim(const Dim& dim, const std::vector<std::string>& symbols);

}  // namespace lowtide
