#include "memory/value_range.h"

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

Known bitwise(Op op, const Interval& a, const Interval& b) {
  if (op == Op::kBitwiseAnd) {
    if (a.low < 0 && b.low < 0) return {};
    return Interval{0, a.low < 0 ? b.high : b.low < 0 ? a.high : std::min(a.high, b.high)};
  }
  if (a.low < 0 || b.low < 0) return {};
  return Interval{0, all_ones(std::max(a.high, b.high))};
}

// Sums of between `least` and `most` elements.
Interval sums(const Interval& element, __int128 least, __int128 most) { return product(element, {least, most}); }

class Rules {
 public:
  Rules(const Graph& graph, ValueRanges& ranges, const Value& value)
      : graph_(graph), ranges_(ranges), value_(value), node_(graph.node(value.producer)) {}

  Known find() const {
    switch (node_.op) {
      case Op::kConstant:
      case Op::kConstantOfShape: return of_dim(node_.attrs.dim("int_value"));
      case Op::kRange: return of_range();

      case Op::kIdentity:
      case Op::kReshape:
      case Op::kTranspose:
      case Op::kSlice:
      case Op::kExpand:
      case Op::kUnsqueeze:
      case Op::kSqueeze:
      case Op::kDetach:
      case Op::kCopy:
      case Op::kFlip:
      case Op::kRoll:
      case Op::kTile:
      case Op::kRepeatInterleave:
      case Op::kGather:
      case Op::kGatherElements:
      case Op::kGatherND:
      case Op::kFloor:
      case Op::kCeil:
      case Op::kRound:
      case Op::kTrunc: return in(0);
      case Op::kCast: return in(0);  // where it does not fit, the caller knows nothing
      case Op::kTrilu: return hull(in(0), {0, 0});
      case Op::kPad: return of_pad();
      case Op::kConcat: return of_concat();
      case Op::kSliceScatter: return hull(in(0), in(1));
      case Op::kScatterElements:
      case Op::kScatterND:
        if (node_.attrs.s("reduction") == "add" || node_.attrs.s("reduction") == "mul") return {};
        return hull(in(0), in(2));

      case Op::kAbs: return of_abs(in(0));
      case Op::kNeg: return Interval{-in(0).high, -in(0).low};
      case Op::kSign: return Interval{-1, 1};
      case Op::kBitwiseNot: return Interval{-1 - in(0).high, -1 - in(0).low};
      case Op::kRelu: return Interval{std::max<__int128>(in(0).low, 0), std::max<__int128>(in(0).high, 0)};
      case Op::kClip: return of_clip();

      case Op::kAdd: return Interval{in(0).low + in(1).low, in(0).high + in(1).high};
      case Op::kSub: return Interval{in(0).low - in(1).high, in(0).high - in(1).low};
      case Op::kMul: return product(in(0), in(1));
      case Op::kDiv: return quotient(in(0), in(1), false);
      case Op::kFloorDiv: return quotient(in(0), in(1), true);
      case Op::kMod: return remainder(in(0), in(1), node_.attrs.b("fmod", false));
      case Op::kMax: return Interval{std::max(in(0).low, in(1).low), std::max(in(0).high, in(1).high)};
      case Op::kMin: return Interval{std::min(in(0).low, in(1).low), std::min(in(0).high, in(1).high)};
      case Op::kBitwiseAnd:
      case Op::kBitwiseOr:
      case Op::kBitwiseXor: return bitwise(node_.op, in(0), in(1));
      case Op::kWhere: return hull(in(1), in(2));

      case Op::kArgMax:
      case Op::kArgMin: return index_of(size("axis"));
      case Op::kTopK:
      case Op::kSort: return value_.output_index == 1 ? index_of(size("axis")) : Known(in(0));
      case Op::kMaxPool: return of_max_pool();
      case Op::kCumSum: return of_sums({node_.attrs.i("axis")}, true);
      case Op::kReduceSum: return of_sums(node_.attrs.is("axes"), false);
      case Op::kReduceMax:
      case Op::kReduceMin: return reduces_something() ? Known(in(0)) : std::nullopt;

      case Op::kUnpackBits: {
        const __int128 low = node_.attrs.i("low");
        return Interval{low, low + (__int128{1} << node_.attrs.i("bits")) - 1};
      }
      default: return {};
    }
  }

 private:
  const Shape& shape(size_t input) const { return graph_.type(node_.inputs[input]).shape; }
  // Every operand of the rules above is of the result's kind, but Cast's: that of a float tells nothing.
  Interval in(size_t input) const {
    const ValueId value = node_.inputs[input];
    return is_float(graph_.type(value).dtype) ? Interval{kLowest, kHighest} : wide(ranges_.range(value));
  }

  // Saturated ends stand for anything: a size beyond them is no int64.
  Known of_dim(const Dim& dim) const {
    const DimRange range = range_of(dim, graph_.ranges());
    if (range.low == kLowest || range.high == kHighest) return {};
    return wide(range);
  }

  // start + i*step lies between its first and its last element.
  Known of_range() const {
    const Dim &first = node_.attrs.dim("int_start"), &step = node_.attrs.dim("int_step");
    const Known begin = of_dim(first), end = of_dim(first + (node_.attrs.dim("numel") - 1) * step);
    if (!begin || !end) return {};
    return hull(*begin, *end);
  }

  Known of_pad() const {
    if (node_.attrs.s("mode") != "constant") return in(0);
    const double value = node_.attrs.f("value");
    if (!(std::abs(value) < 0x1p52)) return {};
    const __int128 padding = static_cast<int64_t>(value);
    return hull(in(0), {padding, padding});
  }

  Known of_concat() const {
    Interval all = in(0);
    for (size_t i = 1; i < node_.inputs.size(); ++i) all = hull(all, in(i));
    return all;
  }

  static Interval of_abs(const Interval& x) {
    const __int128 most = std::max(x.high, -x.low);
    return {x.low > 0 ? x.low : x.high < 0 ? -x.high : 0, most};
  }

  // The upper bound wins where they cross. What is beyond a bound becomes the bound, towards zero. Kernels compare in
  // f64: bounds near those that it does not hold exactly tell nothing.
  Known of_clip() const {
    Interval x = in(0);
    for (const char* bound : {"min", "max"}) {
      if (!node_.attrs.has(bound)) continue;
      const double value = node_.attrs.f(bound);
      if (std::isinf(value)) continue;
      if (!(std::abs(value) < 0x1p52)) return {};
      const bool is_min = bound[1] == 'i';
      const __int128 limit = static_cast<int64_t>(value);
      x = is_min ? Interval{std::max(x.low, limit), std::max(x.high, limit)}
                 : Interval{std::min(x.low, limit), std::min(x.high, limit)};
    }
    return x;
  }

  Dim size(const char* axis) const { return shape(0)[static_cast<size_t>(node_.attrs.i(axis))]; }
  // An index into `count` elements.
  Known index_of(const Dim& count) const {
    const Known sizes = of_dim(count);
    if (!sizes) return {};
    return Interval{0, std::max<__int128>(sizes->high - 1, 0)};
  }

  // A window that may lie in the padding alone has the index -1.
  Known of_max_pool() const {
    const Shape& x = shape(0);
    if (value_.output_index == 0) return {};
    Known index = index_of(numel({x.begin() + 2, x.end()}));
    const std::vector<int64_t> kernel = node_.attrs.is("kernel_shape"), pads = node_.attrs.is("pads");
    const std::vector<int64_t> dilations = node_.attrs.is("dilations");
    bool always_inside = true;  // windows start at most at the last element, in ceil_mode too
    for (size_t i = 0; i < kernel.size(); ++i)
      always_inside = always_inside && dilations[i] == 1 && pads[i] < kernel[i] && pads[kernel.size() + i] < kernel[i];
    if (index && !always_inside) index->low = -1;
    return index;
  }

  // Partial sums: of 1 to all elements along the axis.
  Known of_sums(const std::vector<int64_t>& axes, bool partial) const {
    Shape reduced;
    for (int64_t axis : axes) reduced.push_back(shape(0)[static_cast<size_t>(axis)]);
    const Known count = of_dim(numel(reduced));
    if (!count || is_float(graph_.type(node_.inputs[0]).dtype)) return {};
    return sums(in(0), partial ? 1 : std::max<__int128>(count->low, 0), std::max<__int128>(count->high, 1));
  }

  // What the maximum of nothing is stands nowhere.
  bool reduces_something() const {
    for (int64_t axis : node_.attrs.is("axes"))
      if (range_of(shape(0)[static_cast<size_t>(axis)], graph_.ranges()).low < 1) return false;
    return true;
  }

  const Graph& graph_;
  ValueRanges& ranges_;
  const Value& value_;
  const Node& node_;
};

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
  const Known found = Rules(graph_, *this, value).find();
  // What leaves the dtype wraps around.
  if (!found || found->low < all.low || found->high > all.high) return all;
  return {static_cast<int64_t>(found->low), static_cast<int64_t>(found->high)};
}

DimRange value_range(const Graph& graph, ValueId value) { return ValueRanges(graph).range(value); }

}  // namespace lowtide
