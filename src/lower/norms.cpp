// Normalisations.
#include <limits>

#include "lower/targets.h"

namespace lowtide {

static ValueId in_dtype(Call& c, std::string_view name, DType dtype) {
  const ValueId found = c.optional(name);
  return found ? c.b.cast(found, dtype) : found;
}

static ValueId first_output(Call& c, Op op, std::vector<ValueId> inputs, Attrs attrs) {
  return c.b.op(op, std::move(inputs), std::move(attrs));
}

bool lower_layer_norm(Call& c) {
  const DType dtype = c.dtype();
  const ValueId x = c.operand("input", dtype);
  const int64_t axis = c.b.rank(x) - static_cast<int64_t>(c.dims("normalized_shape").size());
  return c.result(first_output(c, Op::kLayerNormalization,
                               {x, in_dtype(c, "weight", dtype), in_dtype(c, "bias", dtype)},
                               {{"axis", Dim(axis)}, {"epsilon", c.real("eps", 1e-5)}}));
}

static double machine_epsilon(DType dtype) {
  switch (dtype) {
    case DType::kBF16: return 0x1p-7;
    case DType::kF16: return 0x1p-10;
    case DType::kF64: return std::numeric_limits<double>::epsilon();
    default: return std::numeric_limits<float>::epsilon();
  }
}

bool lower_rms_norm(Call& c) {
  const DType dtype = c.dtype();
  const ValueId x = c.operand("input", dtype);
  const int64_t axis = c.b.rank(x) - static_cast<int64_t>(c.dims("normalized_shape").size());
  return c.result(first_output(c, Op::kSimplifiedLayerNormalization, {x, in_dtype(c, "weight", dtype)},
                               {{"axis", Dim(axis)}, {"epsilon", c.real("eps", machine_epsilon(dtype))}}));
}

static bool group_norm(Call& c, Dim groups) {
  const DType dtype = c.dtype();
  return c.result(first_output(c, Op::kGroupNormalization,
                               {c.operand("input", dtype), in_dtype(c, "weight", dtype), in_dtype(c, "bias", dtype)},
                               {{"num_groups", groups}, {"epsilon", c.real("eps", 1e-5)}}));
}
bool lower_group_norm(Call& c) { return group_norm(c, c.dim("num_groups")); }

// Statistics of each sample's channels: groups of one channel.
bool lower_instance_norm(Call& c) {
  const Dim channels = c.b.shape(c.tensor("input"))[1];
  if (!c.flag("use_input_stats", true) || !channels.is_constant()) return false;
  return group_norm(c, channels);
}

// Per-channel [C] as [1, C, 1, …].
static ValueId along_channels(Call& c, ValueId x, int64_t rank) {
  Shape shape(static_cast<size_t>(rank), Dim(1));
  shape[1] = c.b.shape(x)[0];
  return c.b.reshape(x, shape);
}

// x with as many channels as running statistics have: export leaves their number open where there is no image.
static ValueId with_channels_of(Call& c, ValueId x, ValueId statistics) {
  Shape shape = c.b.shape(x);
  if (!statistics.valid() || !numel(shape).is(0)) return x;
  shape[1] = c.b.shape(statistics)[0];
  return c.b.reshape(x, shape);
}

// Outside training: one scale and one shift per channel, not of 16 bits.
static bool batch_norm_inference(Call& c) {
  Builder& b = c.b;
  const DType dtype = opmath(c.dtype());
  const ValueId mean = c.operand("running_mean", dtype), x = with_channels_of(c, c.operand("input", dtype), mean);
  const ValueId variance = c.operand("running_var", dtype);
  const ValueId weight = in_dtype(c, "weight", dtype), bias = in_dtype(c, "bias", dtype);
  ValueId scale = b.op(Op::kRsqrt, {b.add(variance, c.real("eps", 1e-5))});
  if (weight) scale = b.mul(scale, weight);
  ValueId shift = b.neg(b.mul(mean, scale));
  if (bias) shift = b.add(shift, bias);
  const int64_t rank = b.rank(x);
  const ValueId y = b.add(b.mul(x, along_channels(c, scale, rank)), along_channels(c, shift, rank));
  return c.result(b.reshape(y, c.shape()));
}

// batch_norm, and the form that functionalise gives it in training: new running statistics as outputs 3 and 4.
bool lower_batch_norm(Call& c) {
  const ValueId x = c.tensor("input");
  if (c.b.rank(x) < 2) return false;
  if (!c.flag("training")) return c.output_count() == 1 && batch_norm_inference(c);
  const DType dtype = c.wants(0) ? c.dtype() : c.b.dtype(x);
  const ValueId mean = c.optional("running_mean"), variance = c.optional("running_var");
  const ValueId images = with_channels_of(c, c.b.cast(x, dtype), mean);
  const NodeId node = c.b.node(Op::kBatchNormalization,
                               {images, in_dtype(c, "weight", dtype), in_dtype(c, "bias", dtype), mean, variance},
                               {{"epsilon", c.real("eps", 1e-5)}, {"momentum", c.real("momentum", 0.1)}},
                               {true, true, true, mean.valid(), variance.valid()});
  const std::vector<ValueId> outputs = c.b.graph().node(node).outputs;
  for (size_t i = 0; i < c.output_count(); ++i)
    if (c.wants(i)) c.result(c.b.reshape(outputs[i], c.shape(i)), i);
  return true;
}

}  // namespace lowtide
