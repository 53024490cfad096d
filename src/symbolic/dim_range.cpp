#include <algorithm>

#include "base/check.h"
#include "symbolic/dim.h"
#include "symbolic/expression.h"

namespace lowtide {

using dim_internal::Atom;
using dim_internal::AtomKind;

namespace {

// The ends of int64 mean "unbounded" and stay so.
constexpr int64_t kLow = std::numeric_limits<int64_t>::min();
constexpr int64_t kHigh = std::numeric_limits<int64_t>::max();
constexpr DimRange kAnything = {kLow, kHigh};

int64_t clamp(__int128 value) { return static_cast<int64_t>(std::clamp<__int128>(value, kLow, kHigh)); }

bool is_unbounded(int64_t value) { return value == kLow || value == kHigh; }

int64_t multiply(int64_t a, int64_t b) { return clamp(static_cast<__int128>(a) * b); }

DimRange add(const DimRange& a, const DimRange& b) {
  const bool low = a.low == kLow || b.low == kLow, high = a.high == kHigh || b.high == kHigh;
  return {low ? kLow : clamp(static_cast<__int128>(a.low) + b.low),
          high ? kHigh : clamp(static_cast<__int128>(a.high) + b.high)};
}

DimRange multiply(const DimRange& a, const DimRange& b) {
  const auto corners = {multiply(a.low, b.low), multiply(a.low, b.high), multiply(a.high, b.low),
                        multiply(a.high, b.high)};
  return {std::min(corners), std::max(corners)};
}

int64_t divide(int64_t a, int64_t b) {
  if (is_unbounded(a)) return a;
  return a / b - (a % b != 0 && a < 0 ? 1 : 0);
}

DimRange divide(const DimRange& a, const DimRange& b) {
  if (b.low <= 0) return kAnything;
  const auto corners = {divide(a.low, b.low), divide(a.low, b.high), divide(a.high, b.low), divide(a.high, b.high)};
  return {std::min(corners), std::max(corners)};
}

DimRange remainder(const DimRange& a, const DimRange& b) {
  if (b.low <= 0) return kAnything;
  if (a.low >= 0 && a.high < b.low) return a;
  const int64_t high = b.high == kHigh ? kHigh : b.high - 1;
  return {0, a.low >= 0 ? std::min(a.high, high) : high};
}

DimRange of_atom(const Atom& atom, const DimRanges& ranges) {
  if (atom.kind == AtomKind::kSymbol) {
    const auto at = ranges.find(atom.name);
    return at == ranges.end() ? DimRange{} : at->second;
  }
  const DimRange a = range_of(atom.left, ranges), b = range_of(atom.right, ranges);
  switch (atom.kind) {
    case AtomKind::kFloorDiv: return divide(a, b);
    case AtomKind::kMod: return remainder(a, b);
    case AtomKind::kMin: return {std::min(a.low, b.low), std::min(a.high, b.high)};
    case AtomKind::kMax: return {std::max(a.low, b.low), std::max(a.high, b.high)};
    case AtomKind::kSymbol: break;
  }
  return kAnything;
}

}  // namespace

DimRange range_of(const Dim& dim, const DimRanges& ranges) {
  if (dim.is_constant()) return {dim.constant(), dim.constant()};
  DimRange sum = {0, 0};
  for (const auto& [monomial, factor] : dim.expression()->terms) {
    DimRange product = {factor, factor};
    for (const auto& [atom, power] : monomial) {
      const DimRange base = of_atom(atom, ranges);
      for (int64_t i = 0; i < std::min<int64_t>(power, 64); ++i) product = multiply(product, base);
      if (power % 2 == 0 && power <= 64 && monomial.size() == 1) {
        // An even power is never negative, whatever the corners say.
        product = factor > 0 ? DimRange{std::max<int64_t>(product.low, 0), product.high}
                             : DimRange{product.low, std::min<int64_t>(product.high, 0)};
      }
      if (power > 64) product = kAnything;
    }
    sum = add(sum, product);
  }
  return sum;
}

static Dim simplify_atom(const Atom& atom, const DimRanges& ranges) {
  if (atom.kind == AtomKind::kSymbol) return Dim::symbol(atom.name);
  const Dim a = simplify(atom.left, ranges), b = simplify(atom.right, ranges);
  const DimRange difference = range_of(a - b, ranges);
  const bool is_above = difference.low >= 0, is_below = difference.high <= 0;
  const bool is_rest = range_of(a, ranges).low >= 0 && difference.high < 0;  // 0 <= a < b
  switch (atom.kind) {
    case AtomKind::kMin: return is_above ? b : is_below ? a : min(a, b);
    case AtomKind::kMax: return is_above ? a : is_below ? b : max(a, b);
    case AtomKind::kFloorDiv: return is_rest ? Dim(0) : floordiv(a, b);
    case AtomKind::kMod: return is_rest ? a : mod(a, b);
    case AtomKind::kSymbol: break;
  }
  LT_FAIL("an atom of unknown kind");
}

Dim simplify(const Dim& dim, const DimRanges& ranges) {
  if (dim.is_constant()) return dim;
  Dim sum = 0;
  for (const auto& [monomial, factor] : dim.expression()->terms) {
    Dim product = factor;
    for (const auto& [atom, power] : monomial) {
      const Dim base = simplify_atom(atom, ranges);
      for (int64_t i = 0; i < power; ++i) product = product * base;
    }
    sum = sum + product;
  }
  return sum;
}

}  // namespace lowtide
