#include "ops/inference.h"

#include "symbolic/expression.h"

namespace lowtide {

std::string to_string(const Shape& shape) { return concat("[", join(shape, ", "), "]"); }

static bool holds_function(const Dim& dim) {
  if (dim.is_constant()) return false;
  for (const auto& [monomial, factor] : dim.expression()->terms)
    for (const auto& [atom, power] : monomial)
      if (atom.kind != dim_internal::AtomKind::kSymbol) return true;
  return false;
}

bool dims_agree(const Dim& a, const Dim& b, const DimRanges& ranges) {
  if (a == b) return true;
  const Dim difference = a - b;
  if (!holds_function(difference)) return false;
  const DimRange range = range_of(difference, ranges);
  return range.low <= 0 && range.high >= 0;
}

bool shapes_agree(const Shape& a, const Shape& b, const DimRanges& ranges) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (!dims_agree(a[i], b[i], ranges)) return false;
  return true;
}

bool broadcast_dim(const Dim& a, const Dim& b, const DimRanges& ranges, Dim& result) {
  result = a.is(1) ? b : a;
  return a.is(1) || b.is(1) || dims_agree(a, b, ranges);
}

static bool try_broadcast(const Shape& a, const Shape& b, const DimRanges& ranges, Shape& result) {
  const Shape& longer = a.size() >= b.size() ? a : b;
  const Shape& shorter = a.size() >= b.size() ? b : a;
  const size_t lead = longer.size() - shorter.size();
  result = longer;
  for (size_t i = 0; i < shorter.size(); ++i)
    if (!broadcast_dim(longer[lead + i], shorter[i], ranges, result[lead + i])) return false;
  return true;
}

Shape broadcast(const Shape& a, const Shape& b) {
  Shape result;
  LT_USER_CHECK(ErrorKind::kInvalidGraph, try_broadcast(a, b, {}, result), "shapes do not broadcast: ", to_string(a),
                " and ", to_string(b));
  return result;
}

Shape broadcast(const InferArgs& args, const Shape& a, const Shape& b) {
  Shape result;
  LT_INFER_CHECK(args, try_broadcast(a, b, args.ranges, result), "shapes do not broadcast: ", to_string(a), " and ",
                 to_string(b));
  return result;
}

bool broadcasts_to(const Shape& shape, const Shape& target, const DimRanges& ranges) {
  if (shape.size() > target.size()) return false;
  const size_t lead = target.size() - shape.size();
  for (size_t i = 0; i < shape.size(); ++i)
    if (!shape[i].is(1) && !dims_agree(shape[i], target[lead + i], ranges)) return false;
  return true;
}

int64_t constant_attr(const InferArgs& args, std::string_view name) {
  const Dim& value = args.attrs.dim(name);
  LT_INFER_CHECK(args, value.is_constant(), "attribute ", name, " must be a number, is ", to_string(value));
  return value.constant();
}

std::vector<int64_t> constants_attr(const InferArgs& args, std::string_view name) {
  const std::vector<Dim>& values = args.attrs.ints(name);
  for (const Dim& value : values)
    LT_INFER_CHECK(args, value.is_constant(), "attribute ", name, " must hold numbers, is ", to_string(values));
  return args.attrs.is(name);
}

int64_t axis_attr(const InferArgs& args, std::string_view name, int64_t rank) {
  const int64_t axis = constant_attr(args, name);
  LT_INFER_CHECK(args, axis >= 0 && axis < rank, name, "=", axis, " is no axis of a tensor of rank ", rank);
  return axis;
}

std::vector<int64_t> axes_attr(const InferArgs& args, std::string_view name, int64_t rank) {
  const std::vector<int64_t> axes = constants_attr(args, name);
  for (size_t i = 0; i < axes.size(); ++i) {
    LT_INFER_CHECK(args, axes[i] >= 0 && axes[i] < rank, name, "=[", join(axes, ", "), "]: ", axes[i],
                   " is no axis of a tensor of rank ", rank);
    LT_INFER_CHECK(args, i == 0 || axes[i - 1] < axes[i], name, "=[", join(axes, ", "), "] must ascend");
  }
  return axes;
}

void check_word(const InferArgs& args, std::string_view name, std::string_view words) {
  const std::string& found = args.attrs.s(name);
  for (std::string_view rest = words; !rest.empty();) {
    const size_t comma = rest.find(", ");
    if (rest.substr(0, comma) == found) return;
    rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 2);
  }
  LT_INFER_CHECK(args, false, name, "=\"", found, "\": expected one of ", words);
}

void check_rank_at_least(const InferArgs& args, size_t input, int64_t least) {
  LT_INFER_CHECK(args, rank(args.in(input)) >= least, "operand ", input, " must have ", least, " or more dims, is ",
                 to_string(args.in(input)));
}

void check_same_dtype(const InferArgs& args, size_t a, size_t b) {
  LT_INFER_CHECK(args, args.in(a).dtype == args.in(b).dtype, "operands differ in dtype: ", to_string(args.in(a)),
                 " and ", to_string(args.in(b)));
}

void check_float(const InferArgs& args, size_t input) {
  LT_INFER_CHECK(args, is_float(args.in(input).dtype), "operand ", input, " must be floating, is ",
                 to_string(args.in(input)));
}

void check_index_dtype(const InferArgs& args, size_t input) {
  const DType dtype = args.in(input).dtype;
  LT_INFER_CHECK(args, dtype == DType::kI64 || dtype == DType::kI32, "indices must be i64 or i32, are ",
                 to_string(args.in(input)));
}

void check_shape(const InferArgs& args, size_t input, std::string_view what, const Shape& expected) {
  LT_INFER_CHECK(args, shapes_agree(args.in(input).shape, expected, args.ranges), what, " must have shape ",
                 to_string(expected), ", is ", to_string(args.in(input)));
}

void check_like_first(const InferArgs& args, size_t input, std::string_view what, const Shape& expected) {
  if (!args.has(input)) return;
  check_same_dtype(args, 0, input);
  check_shape(args, input, what, expected);
}

Dim sliced_size(const InferArgs& args, const TensorType& x, int64_t axis) {
  const Dim &start = args.attrs.dim("start"), &end = args.attrs.dim("end");
  const int64_t step = constant_attr(args, "step");
  const Dim& size = x.shape[static_cast<size_t>(axis)];
  LT_INFER_CHECK(args, step >= 1, "step must be at least 1, is ", step);
  // Symbolic bounds are refused only where they can never hold: capture has guarded them.
  const bool never = range_of(start, args.ranges).high < 0 || range_of(end - start, args.ranges).high < 0 ||
                     range_of(size - end, args.ranges).high < 0;
  LT_INFER_CHECK(args, !never, "start=", to_string(start), ", end=", to_string(end),
                 " must satisfy 0 <= start <= end <= ", to_string(size), " on axis ", axis, " of ", to_string(x));
  return floordiv(end - start + (step - 1), step);
}

}  // namespace lowtide
