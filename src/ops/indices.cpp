// Gathers and scatters.
#include "ops/builder.h"
#include "ops/inference.h"

namespace lowtide {

static Shape gathered_shape(const Shape& data, const Shape& indices, int64_t axis) {
  Shape shape(data.begin(), data.begin() + axis);
  shape.insert(shape.end(), indices.begin(), indices.end());
  shape.insert(shape.end(), data.begin() + axis + 1, data.end());
  return shape;
}

// y[a.., i.., b..] = data[a.., indices[i..], b..]
std::vector<TensorType> infer_gather(const InferArgs& args) {
  const TensorType& data = args.in(0);
  check_index_dtype(args, 1);
  const int64_t axis = axis_attr(args, "axis", rank(data));
  return {{data.dtype, gathered_shape(data.shape, args.in(1).shape, axis)}};
}

// Gradients of window ops, padding and gathers: as dy, of the attribute `shape`.
std::vector<TensorType> infer_like_shape(const InferArgs& args) {
  const TensorType& dy = args.in(0);
  const Shape& shape = args.attrs.ints("shape");
  check_float(args, 0);
  if (args.op == Op::kGatherGrad) {
    check_index_dtype(args, 1);
    const int64_t axis = axis_attr(args, "axis", static_cast<int64_t>(shape.size()));
    check_shape(args, 0, "dy", gathered_shape(shape, args.in(1).shape, axis));
    if (args.has(2)) {
      check_shape(args, 2, "onto", shape);
      LT_INFER_CHECK(args, args.in(2).dtype == dy.dtype, "onto is ", to_string(args.in(2)), ", dy ", to_string(dy));
    }
  } else {
    LT_INFER_CHECK(args, shape.size() == dy.shape.size(), "shape ", to_string(shape), " differs in rank from ",
                   to_string(dy));
  }
  if (args.op == Op::kMaxPoolGrad) check_shape(args, 1, "indices", dy.shape);
  if (args.op == Op::kPadGrad) {
    check_word(args, "mode", "reflect, edge, wrap");
    LT_INFER_CHECK(args, args.attrs.ints("pads").size() == 2 * shape.size(), "pads has ",
                   args.attrs.ints("pads").size(), " entries for rank ", shape.size());
  }
  return {{dy.dtype, shape}};
}

// torch.gather: y[i.., j, k..] = data[i.., indices[i.., j, k..], k..]
std::vector<TensorType> infer_gather_elements(const InferArgs& args) {
  const TensorType &data = args.in(0), &indices = args.in(1);
  check_index_dtype(args, 1);
  axis_attr(args, "axis", rank(data));
  LT_INFER_CHECK(args, rank(data) == rank(indices), "data and indices differ in rank: ", to_string(data), " and ",
                 to_string(indices));
  return {{data.dtype, indices.shape}};
}

std::vector<TensorType> infer_search_sorted(const InferArgs& args) {
  const TensorType &ascending = args.in(0), &values = args.in(1);
  check_same_dtype(args, 0, 1);
  check_rank_at_least(args, 0, 1);
  if (rank(ascending) > 1) {
    Shape rows = values.shape;
    if (!rows.empty()) rows.back() = ascending.shape.back();
    check_shape(args, 0, "ascending", rows);
  }
  return {{DType::kI64, values.shape}};
}

static Shape nd_shape(const InferArgs& args) {
  const TensorType &data = args.in(0), &indices = args.in(1);
  check_rank_at_least(args, 1, 1);
  LT_INFER_CHECK(args, indices.dtype == DType::kI64, "indices must be i64, are ", to_string(indices));
  const Dim& depth = indices.shape.back();
  LT_INFER_CHECK(args, depth.is_constant() && depth.constant() >= 1 && depth.constant() <= rank(data),
                 "the last dim of ", to_string(indices), " must count leading dims of ", to_string(data));
  Shape shape(indices.shape.begin(), indices.shape.end() - 1);
  shape.insert(shape.end(), data.shape.begin() + depth.constant(), data.shape.end());
  return shape;
}

// y[i.., b..] = data[indices[i..], b..], the last dim of indices naming leading dims of data
std::vector<TensorType> infer_gather_nd(const InferArgs& args) { return {{args.in(0).dtype, nd_shape(args)}}; }

std::vector<TensorType> infer_scatter(const InferArgs& args) {
  const TensorType &data = args.in(0), &indices = args.in(1);
  check_same_dtype(args, 0, 2);
  if (args.op == Op::kScatterND) {
    check_word(args, "reduction", "none, add");
    check_shape(args, 2, "updates", nd_shape(args));
    return {data};
  }
  check_word(args, "reduction", "none, add, mul, max, min");
  check_index_dtype(args, 1);
  axis_attr(args, "axis", rank(data));
  LT_INFER_CHECK(args, rank(data) == rank(indices), "data and indices differ in rank: ", to_string(data), " and ",
                 to_string(indices));
  check_shape(args, 2, "updates", indices.shape);
  const std::string& reduction = args.attrs.s("reduction");
  LT_INFER_CHECK(args, !args.attrs.b("anew", false) || reduction == "max" || reduction == "min",
                 "anew is for max and min, not for ", reduction);
  return {data};
}

// base with update in place of its slice
std::vector<TensorType> infer_slice_scatter(const InferArgs& args) {
  const TensorType& base = args.in(0);
  const int64_t axis = axis_attr(args, "axis", rank(base));
  Shape expected = base.shape;
  expected[static_cast<size_t>(axis)] = sliced_size(args, base, axis);
  check_like_first(args, 1, "update", expected);
  return {base};
}

static ValueId zeros_like(GradContext& c, ValueId like) {
  return c.b().full(c.type(like).shape, 0.0, c.type(like).dtype);
}

void grad_gather(GradContext& c) {
  Attrs attrs = c.attrs();
  attrs.set("shape", c.type(c.in(0)).shape);
  c.set(0, c.b().op(Op::kGatherGrad, {c.dy(), c.in(1)}, std::move(attrs)));
}

void grad_gather_elements(GradContext& c) {
  c.set(0, c.b().op(Op::kScatterElements, {zeros_like(c, c.in(0)), c.in(1), c.dy()},
                    {{"axis", c.attrs().dim("axis")}, {"reduction", "add"}}));
}

// y = max(data, updates there): dy is shared by all that equal y, as torch.scatter_reduce does.
static void grad_scatter_extreme(GradContext& c) {
  Builder& b = c.b();
  const ValueId data = c.in(0), indices = c.in(1), updates = c.in(2), y = c.out(0);
  const DType dtype = c.type(y).dtype;
  const Attrs gather{{"axis", c.attrs().dim("axis")}};
  const ValueId data_hit = b.op(Op::kEqual, {data, y});
  const ValueId update_hit = b.op(Op::kEqual, {updates, b.op(Op::kGatherElements, {y, indices}, gather)});
  const ValueId count = b.op(Op::kScatterElements, {b.cast(data_hit, dtype), indices, b.cast(update_hit, dtype)},
                             {{"axis", c.attrs().dim("axis")}, {"reduction", "add"}});
  const ValueId share = b.div(c.dy(), count);
  if (c.wants(0)) {
    ValueId dx = b.op(Op::kWhere, {data_hit, share, b.scalar(0, dtype)});
    if (c.attrs().b("anew", false))
      dx = b.op(Op::kScatterElements, {dx, indices, zeros_like(c, updates)},
                {{"axis", c.attrs().dim("axis")}, {"reduction", "none"}});
    c.set(0, dx);
  }
  if (c.wants(2))
    c.set(2, b.op(Op::kWhere, {update_hit, b.op(Op::kGatherElements, {share, indices}, gather), b.scalar(0, dtype)}));
}

void grad_scatter_elements(GradContext& c) {
  const std::string& reduction = c.attrs().s("reduction");
  if (reduction == "max" || reduction == "min") return grad_scatter_extreme(c);
  LT_USER_CHECK(ErrorKind::kUnsupported, reduction != "mul",
                with_origin("ScatterElements: no gradient of reduction \"mul\"", c.node().origin));
  Builder& b = c.b();
  if (c.wants(0))
    c.set(0, reduction == "add" ? c.dy()
                                : b.op(Op::kScatterElements, {c.dy(), c.in(1), zeros_like(c, c.in(2))}, c.attrs()));
  if (c.wants(2)) c.set(2, b.op(Op::kGatherElements, {c.dy(), c.in(1)}, {{"axis", c.attrs().dim("axis")}}));
}

void grad_gather_nd(GradContext& c) {
  c.set(0, c.b().op(Op::kScatterND, {zeros_like(c, c.in(0)), c.in(1), c.dy()}, {{"reduction", "add"}}));
}

void grad_scatter_nd(GradContext& c) {
  Builder& b = c.b();
  const bool adds = c.attrs().s("reduction") == "add";
  if (c.wants(0)) c.set(0, adds ? c.dy() : b.op(Op::kScatterND, {c.dy(), c.in(1), zeros_like(c, c.in(2))}, c.attrs()));
  if (c.wants(2)) c.set(2, b.op(Op::kGatherND, {c.dy(), c.in(1)}));
}

void grad_slice_scatter(GradContext& c) {
  Builder& b = c.b();
  const Attrs& attrs = c.attrs();
  if (c.wants(0)) c.set(0, b.op(Op::kSliceScatter, {c.dy(), zeros_like(c, c.in(1))}, attrs));
  if (c.wants(1)) c.set(1, b.slice(c.dy(), attrs.i("axis"), attrs.dim("start"), attrs.dim("end"), attrs.dim("step")));
}

}  // namespace lowtide
