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

}  // namespace lowtide
