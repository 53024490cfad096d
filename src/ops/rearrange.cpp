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

void grad_concat(GradContext& c) {
  const int64_t axis = c.attrs().i("axis");
  Dim start = 0;
  for (size_t i = 0; i < c.node().inputs.size(); ++i) {
    const Dim end = start + c.type(c.in(i)).shape[static_cast<size_t>(axis)];
    if (c.wants(i)) c.set(i, c.b().slice(c.dy(), axis, start, end));
    start = end;
  }
}

// Padding with a constant is undone by slices, which move no bytes; where x was cropped, by the opposite padding.
void grad_pad(GradContext& c) {
  Builder& b = c.b();
  const Attrs& attrs = c.attrs();
  const std::vector<Dim>& pads = attrs.ints("pads");
  const Shape shape = c.type(c.in(0)).shape;
  if (attrs.s("mode") != "constant")
    return c.set(0, b.op(Op::kPadGrad, {c.dy()}, {{"pads", pads}, {"mode", attrs.s("mode")}, {"shape", shape}}));
  bool crops = false;
  std::vector<Dim> opposite;
  for (const Dim& pad : pads) {
    crops = crops || range_of(pad, c.graph().ranges()).low < 0;
    opposite.push_back(-pad);
  }
  if (crops) return c.set(0, b.op(Op::kPad, {c.dy()}, {{"pads", opposite}, {"mode", "constant"}, {"value", 0.0}}));
  ValueId dx = c.dy();
  for (size_t i = 0; i < shape.size(); ++i) dx = b.slice(dx, static_cast<int64_t>(i), pads[i], pads[i] + shape[i]);
  c.set(0, dx);
}

// The sum over the repetitions, which are axes of their own in `split`.
static ValueId sum_repeats(GradContext& c, Shape split, std::vector<int64_t> axes) {
  return c.b().reduce(Op::kReduceSum, c.b().reshape(c.dy(), std::move(split)), std::move(axes), false);
}

void grad_tile(GradContext& c) {
  const Shape& shape = c.type(c.in(0)).shape;
  const std::vector<Dim>& repeats = c.attrs().ints("repeats");
  Shape split;
  std::vector<int64_t> axes;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (!repeats[i].is(1)) {
      axes.push_back(static_cast<int64_t>(split.size()));
      split.push_back(repeats[i]);
    }
    split.push_back(shape[i]);
  }
  c.set(0, sum_repeats(c, std::move(split), std::move(axes)));
}

void grad_repeat_interleave(GradContext& c) {
  const int64_t axis = c.attrs().i("axis");
  Shape split = c.type(c.in(0)).shape;
  split.insert(split.begin() + axis + 1, c.attrs().dim("repeats"));
  c.set(0, sum_repeats(c, std::move(split), {axis + 1}));
}

void grad_flip(GradContext& c) { c.set(0, c.b().op(Op::kFlip, {c.dy()}, c.attrs())); }

void grad_roll(GradContext& c) {
  Attrs attrs = c.attrs();
  std::vector<Dim> back;
  for (const Dim& shift : attrs.ints("shifts")) back.push_back(-shift);
  attrs.set("shifts", back);
  c.set(0, c.b().op(Op::kRoll, {c.dy()}, std::move(attrs)));
}

void grad_trilu(GradContext& c) { c.set(0, c.b().op(Op::kTrilu, {c.dy()}, c.attrs())); }

}  // namespace lowtide
