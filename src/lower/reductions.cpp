// Sums, means, extremes, norms and scans.
#include "lower/reductions.h"

#include <cmath>

#include "lower/targets.h"

namespace lowtide {

// A reduction over `dim` (absent: all dims) of x in the output's dtype, in the exporter's shape.
static bool reduce(Call& c, ValueId x, Op op) {
  if (c.b.rank(x) == 0) return c.result(x);
  const ValueId y = c.b.reduce(op, x, c.axes("dim", c.b.rank(x)), c.flag("keepdim"));
  return c.result(y);
}

// sum, mean, prod, amax, amin, logsumexp: integers are cast first, where the result is wider.
bool lower_reduce(Call& c) { return reduce(c, c.operand("self", c.dtype()), c.op()); }

// An extreme whose gradient goes to NaN as to maxima.
static ValueId extreme(Builder& b, ValueId x, Op op, const std::vector<int64_t>& axes, bool keepdims) {
  if (b.rank(x) == 0) return x;
  return b.op(op, {x}, {{"axes", dims(axes)}, {"keepdims", keepdims}, {"nan_shares", true}});
}

// max, min over all elements.
bool lower_extreme(Call& c) {
  const ValueId x = c.operand("self", c.dtype());
  return c.result(extreme(c.b, x, c.op(), c.axes("dim", c.b.rank(x)), c.flag("keepdim")));
}

// any, all: extremes of 0 and 1.
bool lower_any(Call& c) { return reduce(c, c.b.cast(c.operand("self", DType::kBool), DType::kI32), c.op()); }

bool lower_count_nonzero(Call& c) {
  return reduce(c, c.b.cast(c.operand("self", DType::kBool), DType::kI64), Op::kReduceSum);
}

// The index of an extreme: over one dim, or over all elements in row-major order.
bool lower_arg_reduce(Call& c) {
  ValueId x = c.tensor("self");
  if (c.b.dtype(x) == DType::kBool) x = c.b.cast(x, DType::kU8);
  int64_t axis = 0;
  if (c.has("dim") && c.b.rank(x) > 0)
    axis = c.axis("dim", c.b.rank(x));
  else
    x = c.b.reshape(x, {numel(c.b.shape(x))});
  const ValueId index = c.b.op(c.op(), {x}, {{"axis", Dim(axis)}, {"keepdims", true}});
  return c.result(c.b.reshape(index, c.shape()));
}

// max.dim, min.dim: the gradient goes to the element that the index names, so the value is a gather.
bool lower_extreme_with_index(Call& c) {
  const ValueId x = c.tensor("self");
  if (c.b.rank(x) == 0 || c.b.dtype(x) == DType::kBool) return false;
  const int64_t axis = c.axis("dim", c.b.rank(x));
  const ValueId index = c.b.op(c.op(), {x}, {{"axis", Dim(axis)}, {"keepdims", true}});
  const ValueId value = c.b.op(Op::kGatherElements, {x, index}, {{"axis", Dim(axis)}});
  const bool keep = c.flag("keepdim");
  if (c.wants(0)) c.result(keep ? value : c.b.squeeze(value, {axis}), 0);
  if (c.wants(1)) c.result(keep ? index : c.b.squeeze(index, {axis}), 1);
  return true;
}

bool lower_cumsum(Call& c) {
  const ValueId x = c.operand("self", c.dtype());
  if (c.b.rank(x) == 0) return c.result(x);
  return c.result(c.b.op(Op::kCumSum, {x}, {{"axis", Dim(c.axis("dim", c.b.rank(x)))}}));
}

// ---- variance

struct Moments {
  ValueId mean, variance;  // both with the reduced dims kept
};

static Moments moments(Call& c, ValueId x, const std::vector<int64_t>& axes) {
  Dim count = 1;
  for (int64_t axis : axes) count = count * c.b.shape(x)[static_cast<size_t>(axis)];
  const double correction = c.has("correction") ? c.real("correction") : c.flag("unbiased", true) ? 1 : 0;
  const DType dtype = c.b.dtype(x);
  const ValueId mean = c.b.reduce(Op::kReduceMean, x, axes, true);
  const ValueId centred = c.b.sub(x, mean);
  const ValueId sum = c.b.reduce(Op::kReduceSum, c.b.mul(centred, centred), axes, true);
  const ValueId total =
      count.is_constant()
          ? c.b.scalar(std::max(0.0, static_cast<double>(count.constant()) - correction), dtype)
          : c.b.op(Op::kMax, {c.b.add(c.b.scalar_dim(count, dtype), -correction), c.b.scalar(0, dtype)});
  return {mean, c.b.div(sum, total)};
}

// var, std, var_mean, std_mean: the row's op is Sqrt for the deviations. Of 16 bits the results are rounded alone.
bool lower_variance(Call& c) {
  const ValueId x = c.operand("self", opmath(c.wants(0) ? c.dtype(0) : c.dtype(1)));
  const int64_t rank = c.b.rank(x);
  if (rank == 0) return false;
  const std::vector<int64_t> axes = c.axes("dim", rank);
  Moments found = moments(c, x, axes);
  if (c.op() == Op::kSqrt) found.variance = c.b.op(Op::kSqrt, {found.variance});
  if (c.wants(0)) c.result(c.b.reshape(found.variance, c.shape(0)), 0);
  if (c.wants(1)) c.result(c.b.reshape(found.mean, c.shape(1)), 1);
  return true;
}

// ---- norms

// x to a power; a positive one has the gradient 0 at 0.
static ValueId power_of(Builder& b, ValueId x, double exponent) {
  if (exponent < 0) return b.op(Op::kPow, {x, b.scalar_like(exponent, x)});
  const ValueId is_zero = b.op(Op::kEqual, {x, b.scalar_like(0, x)});
  const ValueId safe = b.op(Op::kWhere, {is_zero, b.scalar_like(1, x), x});
  return b.op(Op::kWhere, {is_zero, b.scalar_like(0, x), b.op(Op::kPow, {safe, b.scalar_like(exponent, x)})});
}

std::optional<ValueId> norm(Builder& b, ValueId x, double order, const std::vector<int64_t>& axes, bool keepdims) {
  if (order == 0) return std::nullopt;
  if (b.rank(x) == 0) return b.op(Op::kAbs, {x});
  if (order == 2) return b.reduce(Op::kReduceL2, x, axes, keepdims);
  const ValueId size = b.op(Op::kAbs, {x});
  if (order == 1) return b.reduce(Op::kReduceSum, size, axes, keepdims);
  if (std::isinf(order)) return extreme(b, size, order > 0 ? Op::kReduceMax : Op::kReduceMin, axes, keepdims);
  const ValueId power =
      order > 0 && order < 1 ? power_of(b, size, order) : b.op(Op::kPow, {size, b.scalar_like(order, x)});
  return power_of(b, b.reduce(Op::kReduceSum, power, axes, keepdims), 1 / order);
}

static bool norm(Call& c, double order) {
  // Two orders have kernels of one step, which round once.
  const ValueId x = c.operand("self", order == 2 || std::isinf(order) ? c.dtype() : opmath(c.dtype()));
  const auto found = norm(c.b, x, order, c.axes("dim", c.b.rank(x)), c.flag("keepdim"));
  return found && c.result(*found);
}
bool lower_vector_norm(Call& c) { return norm(c, c.real("ord", 2)); }
bool lower_norm(Call& c) { return norm(c, c.real("p", 2)); }

// Of a vector, or of all elements; norms of matrices stay PyTorch's, and those of negative order, whose gradient at
// zero is its own.
bool lower_linalg_norm(Call& c) {
  const size_t axes = c.has("dim") ? c.dims("dim").size() : static_cast<size_t>(c.b.rank(c.tensor("self")));
  const double order = c.real("ord", 2);
  if ((c.has("ord") && axes != 1) || (order < 0 && std::isfinite(order))) return false;
  return norm(c, order);
}

// v * g / |v|, the norm over all dims but one (dim = -1: over all).
bool lower_weight_norm(Call& c) {
  const ValueId v = c.tensor("v"), g = c.tensor("g");
  std::vector<int64_t> axes;
  for (int64_t i = 0; i < c.b.rank(v); ++i)
    if (i != c.integer("dim", 0)) axes.push_back(i);
  return c.result(c.b.mul(v, c.b.div(g, c.b.reduce(Op::kReduceL2, v, axes, true))));
}

// ---- rows

bool lower_softmax(Call& c) {
  const ValueId x = c.operand("self", c.dtype());
  if (c.b.rank(x) == 0) return false;
  return c.result(c.b.op(c.op(), {x}, {{"axis", Dim(c.axis("dim", c.b.rank(x)))}}));
}

// ---- order

bool lower_topk(Call& c) {
  const ValueId x = c.tensor("self");
  if (c.b.rank(x) == 0) return false;
  Attrs attrs{{"axis", Dim(c.axis("dim", c.b.rank(x), -1))}, {"k", c.dim("k")}, {"largest", c.flag("largest", true)}};
  if (!c.flag("sorted", true)) attrs.set("sorted", false);
  const NodeId node = c.b.node(Op::kTopK, {x}, std::move(attrs));
  const std::vector<ValueId> outputs = c.b.graph().node(node).outputs;
  return c.result(outputs[0], 0) && c.result(outputs[1], 1);
}

// sort, argsort: the row's op is Identity for both outputs, ArgMax for the indices alone.
bool lower_sort(Call& c) {
  const ValueId x = c.tensor("self");
  if (c.b.rank(x) == 0) {
    const ValueId first = c.constant(Dim(0), DType::kI64);
    return c.op() == Op::kArgMax ? c.result(first, 0) : c.result(x, 0) && c.result(first, 1);
  }
  const NodeId node =
      c.b.node(Op::kSort, {x}, {{"axis", Dim(c.axis("dim", c.b.rank(x), -1))}, {"descending", c.flag("descending")}});
  const std::vector<ValueId> outputs = c.b.graph().node(node).outputs;
  if (c.op() == Op::kArgMax) return c.result(outputs[1], 0);
  return c.result(outputs[0], 0) && c.result(outputs[1], 1);
}

}  // namespace lowtide
