#include "ops/value_range.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <optional>

#include "base/check.h"

namespace lowtide {

namespace {

constexpr int64_t kLowest = std::numeric_limits<int64_t>::min();
constexpr int64_t kHighest = std::numeric_limits<int64_t>::max();

// Exact ends: sums and products of int64 fit. Nothing known: std::nullopt.
struct Interval {
  __int128 low, high;
};
using Known = std::optional<Interval>;

Interval wide(const DimRange& range) { return {range.low, range.high}; }

Interval hull(const Interval& a, const Interval& b) { return {std::min(a.low, b.low), std::max(a.high, b.high)}; }

Interval corners(std::initializer_list<__int128> values) { return {std::min(values), std::max(values)}; }

Interval product(const Interval& a, const Interval& b) {
  return corners({a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high});
}

__int128 floor_divided(__int128 a, __int128 b) { return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); }

// a/b is monotone in each operand while b keeps its sign.
Known quotient(const Interval& a, const Interval& b, bool floors) {
  if (b.low <= 0 && b.high >= 0) return {};
  const auto divided = [&](__int128 x, __int128 y) { return floors ? floor_divided(x, y) : x / y; };
  return corners({divided(a.low, b.low), divided(a.low, b.high), divided(a.high, b.low), divided(a.high, b.high)});
}

Known remainder(const Interval& a, const Interval& b, bool sign_of_dividend) {
  if (b.low <= 0 && b.high >= 0) return {};
  const __int128 most = std::max(b.high, -b.low) - 1;  // of the remainder's absolute value
  if (sign_of_dividend)
    return Interval{a.low < 0 ? std::max(a.low, -most) : 0, a.high > 0 ? std::min(a.high, most) : 0};
  if (b.low > 0) return a.low >= 0 && a.high < b.low ? a : Interval{0, most};
  return a.high <= 0 && a.low > b.high ? a : Interval{-most, 0};
}

// The smallest 2^k - 1 that is not below `value`.
__int128 all_ones(__int128 value) {
  __int128 ones = 0;
  while (ones < value) ones = 2 * ones + 1;
  return ones;
}

// Sums of between `least` and `most` elements.
Interval sums(const Interval& element, __int128 least, __int128 most) { return product(element, {least, most}); }

}  // namespace

// What a rule sees: the node whose output `value` is asked for.
class RangeArgs {
 public:
  RangeArgs(const Graph& graph, ValueRanges& ranges, const Value& value)
      : graph_(graph), ranges_(ranges), value_(value), node_(graph.node(value.producer)) {}

  Op op() const { return node_.op; }
  const Attrs& attrs() const { return node_.attrs; }
  size_t operands() const { return node_.inputs.size(); }
  int32_t output() const { return value_.output_index; }
  const TensorType& type(size_t input) const { return graph_.type(node_.inputs[input]); }
  // Every operand of the rules is of the result's dtype class, but Cast's: that of a float tells nothing.
  Interval in(size_t input) const {
    const ValueId value = node_.inputs[input];
    return is_float(graph_.type(value).dtype) ? Interval{kLowest, kHighest} : wide(ranges_.range(value));
  }
  DimRange range(const Dim& dim) const { return range_of(dim, graph_.ranges()); }
  // Saturated ends stand for anything: a size beyond them is no int64.
  Known of_dim(const Dim& dim) const {
    const DimRange found = range(dim);
    if (found.low == kLowest || found.high == kHighest) return {};
    return wide(found);
  }
  Dim size(int64_t axis) const { return type(0).shape[static_cast<size_t>(axis)]; }

 private:
  const Graph& graph_;
  ValueRanges& ranges_;
  const Value& value_;
  const Node& node_;
};

namespace {

// ---- the rules that ops.def names

Known range_filler(const RangeArgs& a) { return a.of_dim(a.attrs().dim("int_value")); }

// start + i*step lies between its first and its last element.
Known range_range(const RangeArgs& a) {
  const Dim &first = a.attrs().dim("int_start"), &step = a.attrs().dim("int_step");
  const Known begin = a.of_dim(first), end = a.of_dim(first + (a.attrs().dim("numel") - 1) * step);
  if (!begin || !end) return {};
  return hull(*begin, *end);
}

// Some of x's elements. (Where a cast does not fit, the caller knows nothing.)
Known range_same(const RangeArgs& a) { return a.in(0); }
Known range_with_zero(const RangeArgs& a) { return hull(a.in(0), {0, 0}); }
Known range_both(const RangeArgs& a) { return hull(a.in(0), a.in(1)); }
Known range_where(const RangeArgs& a) { return hull(a.in(1), a.in(2)); }

Known range_scatter(const RangeArgs& a) {
  if (a.attrs().s("reduction") == "add" || a.attrs().s("reduction") == "mul") return {};
  return hull(a.in(0), a.in(2));
}

Known range_pad(const RangeArgs& a) {
  if (a.attrs().s("mode") != "constant") return a.in(0);
  const double value = a.attrs().f("value");
  if (!(std::abs(value) < 0x1p52)) return {};
  const __int128 padding = static_cast<int64_t>(value);
  return hull(a.in(0), {padding, padding});
}

Known range_concat(const RangeArgs& a) {
  Interval all = a.in(0);
  for (size_t i = 1; i < a.operands(); ++i) all = hull(all, a.in(i));
  return all;
}

Known range_abs(const RangeArgs& a) {
  const Interval x = a.in(0);
  return Interval{x.low > 0 ? x.low : x.high < 0 ? -x.high : 0, std::max(x.high, -x.low)};
}

Known range_neg(const RangeArgs& a) { return Interval{-a.in(0).high, -a.in(0).low}; }
Known range_sign(const RangeArgs&) { return Interval{-1, 1}; }
Known range_bitwise_not(const RangeArgs& a) { return Interval{-1 - a.in(0).high, -1 - a.in(0).low}; }
Known range_relu(const RangeArgs& a) {
  return Interval{std::max<__int128>(a.in(0).low, 0), std::max<__int128>(a.in(0).high, 0)};
}

// The upper bound wins where they cross. What is beyond a bound becomes the bound, towards zero. Kernels compare in
// f64: bounds near those that it does not hold exactly tell nothing.
Known range_clip(const RangeArgs& a) {
  Interval x = a.in(0);
  for (const char* bound : {"min", "max"}) {
    if (!a.attrs().has(bound)) continue;
    const double value = a.attrs().f(bound);
    if (std::isinf(value)) continue;
    if (!(std::abs(value) < 0x1p52)) return {};
    const bool is_min = bound[1] == 'i';
    const __int128 limit = static_cast<int64_t>(value);
    x = is_min ? Interval{std::max(x.low, limit), std::max(x.high, limit)}
               : Interval{std::min(x.low, limit), std::min(x.high, limit)};
  }
  return x;
}

Known range_add(const RangeArgs& a) { return Interval{a.in(0).low + a.in(1).low, a.in(0).high + a.in(1).high}; }
Known range_sub(const RangeArgs& a) { return Interval{a.in(0).low - a.in(1).high, a.in(0).high - a.in(1).low}; }
Known range_mul(const RangeArgs& a) { return product(a.in(0), a.in(1)); }
Known range_div(const RangeArgs& a) { return quotient(a.in(0), a.in(1), false); }
Known range_floor_div(const RangeArgs& a) { return quotient(a.in(0), a.in(1), true); }
Known range_mod(const RangeArgs& a) { return remainder(a.in(0), a.in(1), a.attrs().b("fmod", false)); }
Known range_max(const RangeArgs& a) {
  return Interval{std::max(a.in(0).low, a.in(1).low), std::max(a.in(0).high, a.in(1).high)};
}
Known range_min(const RangeArgs& a) {
  return Interval{std::min(a.in(0).low, a.in(1).low), std::min(a.in(0).high, a.in(1).high)};
}

Known range_bitwise_and(const RangeArgs& args) {
  const Interval a = args.in(0), b = args.in(1);
  if (a.low < 0 && b.low < 0) return {};
  return Interval{0, a.low < 0 ? b.high : b.low < 0 ? a.high : std::min(a.high, b.high)};
}

Known range_bitwise_or(const RangeArgs& args) {
  const Interval a = args.in(0), b = args.in(1);
  if (a.low < 0 || b.low < 0) return {};
  return Interval{0, all_ones(std::max(a.high, b.high))};
}

// An index into `count` elements.
Known index_of(const RangeArgs& a, const Dim& count) {
  const Known sizes = a.of_dim(count);
  if (!sizes) return {};
  return Interval{0, std::max<__int128>(sizes->high - 1, 0)};
}

Known range_arg(const RangeArgs& a) { return index_of(a, a.size(a.attrs().i("axis"))); }
Known range_sort(const RangeArgs& a) { return a.output() == 1 ? range_arg(a) : range_same(a); }

// A window that may lie in the padding alone has the index -1.
Known range_max_pool(const RangeArgs& a) {
  const Shape& x = a.type(0).shape;
  if (a.output() == 0) return {};
  const std::vector<int64_t> kernel = a.attrs().is("kernel_shape"), pads = a.attrs().is("pads");
  const std::vector<int64_t> dilations = a.attrs().is("dilations");
  if (a.attrs().b("offsets", false)) return Interval{0, kernel[0] * kernel[1] - 1};
  Known index = index_of(a, numel({x.begin() + 2, x.end()}));
  bool always_inside = true;  // windows start at most at the last element, in ceil_mode too
  for (size_t i = 0; i < kernel.size(); ++i)
    always_inside = always_inside && dilations[i] == 1 && pads[i] < kernel[i] && pads[kernel.size() + i] < kernel[i];
  if (index && !always_inside) index->low = -1;
  return index;
}

// Partial sums: of 1 to all elements along the axes.
Known of_sums(const RangeArgs& a, const std::vector<int64_t>& axes, bool partial) {
  Shape reduced;
  for (int64_t axis : axes) reduced.push_back(a.size(axis));
  const Known count = a.of_dim(numel(reduced));
  if (!count || is_float(a.type(0).dtype)) return {};
  return sums(a.in(0), partial ? 1 : std::max<__int128>(count->low, 0), std::max<__int128>(count->high, 1));
}

Known range_cum_sum(const RangeArgs& a) { return of_sums(a, {a.attrs().i("axis")}, true); }
Known range_sum(const RangeArgs& a) { return of_sums(a, a.attrs().is("axes"), false); }

// What the maximum of nothing is stands nowhere.
Known range_extremum(const RangeArgs& a) {
  for (int64_t axis : a.attrs().is("axes"))
    if (a.range(a.size(axis)).low < 1) return {};
  return a.in(0);
}

Known range_unpack_bits(const RangeArgs& a) {
  const __int128 low = a.attrs().i("low");
  return Interval{low, low + (__int128{1} << a.attrs().i("bits")) - 1};
}

using RangeFunction = Known (*)(const RangeArgs&);

RangeFunction range_function(Op op) {
  switch (op) {
#define LT_OP(...)
#define LT_RANGE(name, rule) \
  case Op::k##name: return rule;
#include "opset/ops.def"
    default: return nullptr;
  }
}

}  // namespace

DimRange full_range(DType dtype) {
  LT_CHECK(dtype == DType::kBool || is_integer(dtype), "no range of ", name(dtype));
  if (dtype == DType::kBool) return {0, 1};
  if (dtype == DType::kU8) return {0, 255};
  if (dtype == DType::kI64) return {kLowest, kHighest};
  const int64_t half = int64_t{1} << (8 * size_bytes(dtype) - 1);
  return {-half, half - 1};
}

DimRange ValueRanges::range(ValueId id) {
  if (auto at = known_.find(id); at != known_.end()) return at->second;
  const Value& value = graph_.value(id);
  // Recursion is bounded: a chain that long has no provable range worth knowing.
  constexpr int kDeepest = 200;
  if (depth_ >= kDeepest) return full_range(value.type.dtype);
  ++depth_;
  const DimRange found = find(value);
  --depth_;
  known_.emplace(id, found);
  return found;
}

DimRange ValueRanges::find(const Value& value) {
  const DimRange all = full_range(value.type.dtype);
  if (!value.producer || value.type.dtype == DType::kBool) return all;
  const RangeFunction rule = range_function(graph_.node(value.producer).op);
  const Known found = rule ? rule(RangeArgs(graph_, *this, value)) : std::nullopt;
  // What leaves the dtype wraps around.
  if (!found || found->low < all.low || found->high > all.high) return all;
  return {static_cast<int64_t>(found->low), static_cast<int64_t>(found->high)};
}

DimRange value_range(const Graph& graph, ValueId value) { return ValueRanges(graph).range(value); }

}  // namespace lowtide
