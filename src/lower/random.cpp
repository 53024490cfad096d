// Random ops: each node draws from a stream of its own.
#include "lower/targets.h"

namespace lowtide {

static bool dropout(Call& c, ValueId x, bool train) {
  const double ratio = c.real("p", 0.5);
  if (!train || ratio == 0) return c.result(x);
  return c.result(c.b.op(Op::kDropout, {x}, {{"ratio", ratio}, {"stream", c.fresh_stream()}}));
}

bool lower_dropout(Call& c) { return dropout(c, c.operand("input", c.dtype()), c.flag("train")); }

// The mask is an output that only a decomposed backward reads.
bool lower_native_dropout(Call& c) {
  if (c.wants(1) || !c.wants(0)) return false;
  return dropout(c, c.operand("input", c.dtype()), c.flag("train", true));
}

// Whole channels at a time: dims 0 and 1 draw, the others broadcast.
bool lower_feature_dropout(Call& c) {
  const ValueId x = c.operand("input", c.dtype());
  const double ratio = c.real("p", 0.5);
  if (!c.flag("train") || ratio == 0) return c.result(x);
  if (c.b.rank(x) < 2) return false;
  Shape shape(static_cast<size_t>(c.b.rank(x)), Dim(1));
  shape[0] = c.b.shape(x)[0];
  shape[1] = c.b.shape(x)[1];
  const ValueId mask =
      c.b.op(Op::kDropout, {c.b.full(shape, 1, c.dtype())}, {{"ratio", ratio}, {"stream", c.fresh_stream()}});
  return c.result(c.b.mul(x, mask));
}

static ValueId uniform(Call& c, DType dtype, double low, double high) {
  return c.b.op(Op::kRandomUniform, {},
                {{"dtype", dtype}, {"shape", c.shape()}, {"low", low}, {"high", high}, {"stream", c.fresh_stream()}});
}

bool lower_rand(Call& c) { return c.result(uniform(c, c.dtype(), 0, 1)); }
bool lower_uniform(Call& c) { return c.result(uniform(c, c.dtype(), c.real("from", 0), c.real("to", 1))); }

static bool normal(Call& c, double mean, double scale) {
  return c.result(c.b.op(
      Op::kRandomNormal, {},
      {{"dtype", c.dtype()}, {"shape", c.shape()}, {"mean", mean}, {"scale", scale}, {"stream", c.fresh_stream()}}));
}
bool lower_randn(Call& c) { return normal(c, 0, 1); }
bool lower_normal(Call& c) { return normal(c, c.real("mean", 0), c.real("std", 1)); }

// Integers in [low, high), drawn in f64 so that every integer has its share.
bool lower_randint(Call& c) {
  const Dim low = c.has("low") ? c.dim("low") : Dim(0), high = c.dim("high");
  if (!low.is_constant() || !high.is_constant()) return false;
  const ValueId real =
      uniform(c, DType::kF64, static_cast<double>(low.constant()), static_cast<double>(high.constant()));
  return c.result(c.b.op(Op::kFloor, {real}));
}

// bernoulli(self): self holds the probabilities; bernoulli(self, p): one for all.
bool lower_bernoulli(Call& c) {
  const DType dtype = is_float(c.dtype()) ? c.dtype() : DType::kF32;
  const ValueId probability = c.has("p") ? c.full(c.shape(), c.number("p"), dtype) : c.operand("self", dtype);
  return c.result(c.b.op(Op::kBernoulli, {probability}, {{"stream", c.fresh_stream()}}));
}

}  // namespace lowtide
