// Tensors out of numbers.
#include <algorithm>
#include <cmath>

#include "lower/targets.h"

namespace lowtide {

static bool filled(Call& c, const Number& number) { return c.result(c.full(c.shape(), number, c.dtype())); }

// zeros, new_zeros, zeros_like, zero, and empty, whose content is nobody's business.
bool lower_zeros(Call& c) { return filled(c, Dim(0)); }
bool lower_ones(Call& c) { return filled(c, Dim(1)); }

// By a number, or by a tensor of one element that may need a gradient.
static bool filled_by(Call& c, std::string_view name) {
  if (!c.is_tensor(name)) return filled(c, c.number(name));
  return c.result(c.b.expand(c.b.reshape(c.operand(name, c.dtype()), {}), c.shape()));
}

bool lower_full(Call& c) { return filled_by(c, "fill_value"); }
bool lower_scalar_tensor(Call& c) { return filled_by(c, "s"); }
bool lower_fill(Call& c) { return filled_by(c, "value"); }

static ValueId range(Call& c, const Dim& numel, const Dim& start, const Dim& step) {
  return c.b.op(Op::kRange, {}, {{"dtype", DType::kI64}, {"numel", numel}, {"int_start", start}, {"int_step", step}});
}

// Significant bits of a number.
static int bits_of(DType dtype) {
  switch (dtype) {
    case DType::kF64: return 53;
    case DType::kF16: return 11;
    case DType::kBF16: return 8;
    default: return 24;
  }
}

// Whether start, start + step, … are all numbers of `dtype`: then it does not matter in which order they are computed.
// PyTorch's order depends on the processor's vectors, and indices are made of such numbers: linspace(0, n, k).long().
static bool counts_exactly(double start, double step, const Dim& numel, DType dtype) {
  double unit = 1.0;
  while (std::fmod(start, unit) != 0.0 || std::fmod(step, unit) != 0.0) {
    unit /= 2;
    if (unit < 1e-6) return false;
  }
  if (!numel.is_constant()) return true;
  const double last = start + step * static_cast<double>(std::max<int64_t>(numel.constant() - 1, 0));
  return std::max(std::abs(start), std::abs(last)) / unit <= std::ldexp(1.0, bits_of(dtype));
}

// Integers count from a whole number in whole steps: PyTorch cuts off what follows the point.
static Number whole(const Number& number) {
  const double* real = std::get_if<double>(&number);
  return real != nullptr && std::abs(*real) < 9e18 ? Number(Dim(static_cast<int64_t>(*real))) : number;
}

bool lower_arange(Call& c) {
  Number start = c.has("start") ? c.number("start") : Number(Dim(0));
  Number step = c.has("step") ? c.number("step") : Number(Dim(1));
  if (is_integer(c.dtype())) {
    start = whole(start);
    step = whole(step);
  }
  const Dim* int_start = std::get_if<Dim>(&start);
  const Dim* int_step = std::get_if<Dim>(&step);
  const Dim count = c.shape()[0];
  const bool is_known =
      (int_start == nullptr || int_start->is_constant()) && (int_step == nullptr || int_step->is_constant());
  if (!is_integer(c.dtype()) && is_known && !counts_exactly(to_double(start), to_double(step), count, c.dtype()))
    return false;
  if (int_start != nullptr && int_step != nullptr) {
    if (!is_integer(c.dtype())) return c.result(range(c, count, *int_start, *int_step));
    return c.result(c.b.op(
        Op::kRange, {}, {{"dtype", c.dtype()}, {"numel", count}, {"int_start", *int_start}, {"int_step", *int_step}}));
  }
  if (!is_float(c.dtype())) return false;
  return c.result(
      c.b.op(Op::kRange, {},
             {{"dtype", c.dtype()}, {"numel", count}, {"start", to_double(start)}, {"step", to_double(step)}}));
}

bool lower_linspace(Call& c) {
  const Dim steps = c.shape()[0];
  if (!steps.is_constant() || !is_float(c.dtype()) || c.is_tensor("start") || c.is_tensor("end")) return false;
  const double start = c.real("start"), end = c.real("end"), gaps = static_cast<double>(steps.constant()) - 1;
  const double step = gaps > 0 ? (end - start) / gaps : 0.0;
  if (!counts_exactly(start, step, steps, c.dtype())) return false;
  return c.result(c.b.op(Op::kRange, {}, {{"dtype", c.dtype()}, {"numel", steps}, {"start", start}, {"step", step}}));
}

bool lower_eye(Call& c) {
  const ValueId rows = c.b.unsqueeze(range(c, c.shape()[0], 0, 1), {1});
  const ValueId columns = range(c, c.shape()[1], 0, 1);
  return c.result(c.b.op(Op::kEqual, {rows, columns}));
}

bool lower_one_hot(Call& c) {
  const Dim classes = c.dim("num_classes");
  if (classes.is(-1)) c.unsupported("the number of classes depends on data");
  const ValueId x = c.tensor("self");
  return c.result(c.b.op(Op::kEqual, {c.b.unsqueeze(x, {c.b.rank(x)}), range(c, classes, 0, 1)}));
}

}  // namespace lowtide
