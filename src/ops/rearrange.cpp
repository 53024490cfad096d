// Ops that copy elements to other places: concatenation, padding, repetition, reversal.
#include "ops/builder.h"
#include "ops/inference.h"

namespace lowtide {

std::vector<TensorType> infer_concat(const InferArgs& args) {
  TensorType y = args.in(0);
  const size_t axis = static_cast<size_t>(axis_attr(args, "axis", rank(y)));
  for (size_t i = 1; i < args.inputs.size(); ++i) {
    LT_INFER_CHECK(args, args.has(i), "operand ", i, " is absent");
    check_same_dtype(args, 0, i);
    const TensorType& x = args.in(i);
    Shape rest = x.shape, expected = y.shape;
    if (rest.size() > axis) rest[axis] = expected[axis] = 0;
    LT_INFER_CHECK(args, shapes_agree(rest, expected, args.ranges), "operands differ outside of axis ", axis, ": ",
                   to_string(args.in(0)), " and ", to_string(x));
    y.shape[axis] = y.shape[axis] + x.shape[axis];
  }
  return {y};
}

// y of `from` padded by the attribute pads
static Shape padded(const InferArgs& args, const Shape& from) {
  const std::vector<Dim>& pads = args.attrs.ints("pads");
  LT_INFER_CHECK(args, pads.size() == 2 * from.size(), "pads has ", pads.size(), " entries for rank ", from.size(),
                 ", expected begins then ends");
  Shape shape = from;
  for (size_t i = 0; i < shape.size(); ++i) {
    shape[i] = shape[i] + pads[i] + pads[i + shape.size()];
    LT_INFER_CHECK(args, !shape[i].is_constant() || shape[i].constant() >= 0, "crops axis ", i, " of ", to_string(from),
                   " below nothing");
  }
  return shape;
}

std::vector<TensorType> infer_pad(const InferArgs& args) {
  check_word(args, "mode", "constant, reflect, edge, wrap");
  return {{args.in(0).dtype, padded(args, args.in(0).shape)}};
}

std::vector<TensorType> infer_tile(const InferArgs& args) {
  TensorType y = args.in(0);
  const std::vector<Dim>& repeats = args.attrs.ints("repeats");
  LT_INFER_CHECK(args, repeats.size() == y.shape.size(), "repeats has ", repeats.size(), " entries for ", to_string(y));
  for (size_t i = 0; i < repeats.size(); ++i) y.shape[i] = y.shape[i] * repeats[i];
  return {y};
}

// y[.., i*repeats + r, ..] = x[.., i, ..]
std::vector<TensorType> infer_repeat_interleave(const InferArgs& args) {
  TensorType y = args.in(0);
  Dim& size = y.shape[static_cast<size_t>(axis_attr(args, "axis", rank(y)))];
  size = size * args.attrs.dim("repeats");
  return {y};
}

}  // namespace lowtide
