// Softmax and norms over dense f32 rows.
#include "kernels/adapters/list.h"
#include "kernels/adapters/strided.h"
#include "kernels/cpu/batch_norm.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/softmax.h"

namespace lowtide::adapters {

namespace {

int64_t size_of(const TensorRef& tensor, int64_t begin, int64_t end) {
  int64_t product = 1;
  for (int64_t i = begin; i < end; ++i) product *= tensor.sizes[i];
  return product;
}

const float* floats(const TensorRef* tensor) { return tensor ? tensor->as<float>() : nullptr; }
float* target(const TensorRef* tensor) { return tensor ? tensor->as<float>() : nullptr; }

struct Rows {
  int64_t rows, cols;
};
// [0, axis) and [axis, rank).
Rows rows_at(const TensorRef& x, int64_t axis) { return {size_of(x, 0, axis), size_of(x, axis, x.rank)}; }
Rows softmax_rows(const TensorRef& x) { return x.rank == 0 ? Rows{1, 1} : rows_at(x, x.rank - 1); }

}  // namespace

const char* supports_last_axis(const KernelQuery& query) {
  const int rank = query.inputs[0].rank;
  if (rank > 0 && query.attrs->i("axis") != rank - 1) return "not over the last axis";
  return supports_f32(query);
}

KernelStatus softmax(const KernelCall& call) {
  const auto [rows, cols] = softmax_rows(call.inputs[0]);
  cpu::softmax(call.inputs[0].as<float>(), call.outputs[0].as<float>(), rows, cols);
  return nullptr;
}
KernelStatus log_softmax(const KernelCall& call) {
  const auto [rows, cols] = softmax_rows(call.inputs[0]);
  cpu::log_softmax(call.inputs[0].as<float>(), call.outputs[0].as<float>(), rows, cols);
  return nullptr;
}
KernelStatus softmax_grad(const KernelCall& call) {
  const auto [rows, cols] = softmax_rows(call.inputs[1]);
  cpu::softmax_grad(call.inputs[1].as<float>(), call.inputs[0].as<float>(), call.outputs[0].as<float>(), rows, cols);
  return nullptr;
}
KernelStatus log_softmax_grad(const KernelCall& call) {
  const auto [rows, cols] = softmax_rows(call.inputs[1]);
  cpu::log_softmax_grad(call.inputs[1].as<float>(), call.inputs[0].as<float>(), call.outputs[0].as<float>(), rows,
                        cols);
  return nullptr;
}

// ---- layer norm, RMS norm

KernelStatus layer_norm(const KernelCall& call) {
  const auto [rows, cols] = rows_at(call.inputs[0], call.attrs->i("axis"));
  cpu::layer_norm(floats(&call.inputs[0]), floats(input(call, 1)), floats(input(call, 2)), target(output(call, 0)),
                  target(output(call, 1)), target(output(call, 2)), rows, cols,
                  static_cast<float>(call.attrs->f("epsilon")));
  return nullptr;
}

KernelStatus layer_norm_grad(const KernelCall& call) {
  const auto [rows, cols] = rows_at(call.inputs[1], call.attrs->i("axis"));
  cpu::layer_norm_grad(floats(&call.inputs[0]), floats(&call.inputs[1]), floats(input(call, 4)),
                       floats(&call.inputs[2]), floats(&call.inputs[3]), target(output(call, 0)),
                       target(output(call, 1)), target(output(call, 2)), rows, cols, call.scratch);
  return nullptr;
}

KernelStatus rms_norm(const KernelCall& call) {
  const auto [rows, cols] = rows_at(call.inputs[0], call.attrs->i("axis"));
  cpu::rms_norm(floats(&call.inputs[0]), floats(input(call, 1)), target(output(call, 0)), target(output(call, 1)), rows,
                cols, static_cast<float>(call.attrs->f("epsilon")));
  return nullptr;
}

KernelStatus rms_norm_grad(const KernelCall& call) {
  const auto [rows, cols] = rows_at(call.inputs[1], call.attrs->i("axis"));
  cpu::rms_norm_grad(floats(&call.inputs[0]), floats(&call.inputs[1]), floats(input(call, 3)), floats(&call.inputs[2]),
                     target(output(call, 0)), target(output(call, 1)), rows, cols, call.scratch);
  return nullptr;
}

int64_t norm_grad_scratch(const KernelCall& call) {
  const auto [rows, cols] = rows_at(call.inputs[1], call.attrs->i("axis"));
  return cpu::norm_grad_scratch_bytes(rows, cols);
}

// ---- batch norm: dense in either layout

static cpu::BatchNormShape batch_shape(const TensorRef& x) {
  cpu::BatchNormShape shape{x.sizes[0], x.sizes[1], size_of(x, 2, x.rank), false};
  shape.channels_last = !x.is_row_major();
  return shape;
}

int64_t batch_norm_scratch(const KernelCall& call) {
  const cpu::BatchNormShape shape = batch_shape(call.inputs[call.outputs.size() == 5 ? 0 : 1]);
  return (cpu::batch_norm_scratch_bytes(shape) + 63) / 64 * 64 + 2 * shape.channels * 4;
}

KernelStatus batch_norm(const KernelCall& call) {
  const cpu::BatchNormShape shape = batch_shape(call.inputs[0]);
  cpu::RunningStatistics running;
  if (input(call, 3) && output(call, 3)) {
    running.mean = floats(input(call, 3));
    running.new_mean = target(output(call, 3));
  }
  if (input(call, 4) && output(call, 4)) {
    running.variance = floats(input(call, 4));
    running.new_variance = target(output(call, 4));
  }
  running.momentum = static_cast<float>(call.attrs->f("momentum"));
  float* spare =
      reinterpret_cast<float*>(static_cast<char*>(call.scratch) + (call.scratch_bytes - 2 * shape.channels * 4));
  float* mean = output(call, 1) ? target(output(call, 1)) : spare;
  float* rstd = output(call, 2) ? target(output(call, 2)) : spare + shape.channels;
  cpu::batch_norm_train(shape, floats(&call.inputs[0]),
                        {floats(input(call, 1)), floats(input(call, 2)), static_cast<float>(call.attrs->f("epsilon"))},
                        running, target(output(call, 0)), mean, rstd, call.scratch);
  return nullptr;
}

KernelStatus batch_norm_grad(const KernelCall& call) {
  cpu::batch_norm_grad(batch_shape(call.inputs[1]), floats(&call.inputs[0]), floats(&call.inputs[1]),
                       floats(input(call, 4)), floats(&call.inputs[2]), floats(&call.inputs[3]), true,
                       target(output(call, 0)), target(output(call, 1)), target(output(call, 2)), call.scratch);
  return nullptr;
}

const char* supports_batch_norm(const KernelQuery& query) {
  if (query.inputs.size() > 4 && query.op == Op::kBatchNormalization) {
    const bool both = query.inputs[3].present == query.inputs[4].present;
    if (!both || query.outputs[3].present != query.outputs[4].present) return "one running statistic without the other";
  }
  return supports_f32(query);
}

}  // namespace lowtide::adapters
