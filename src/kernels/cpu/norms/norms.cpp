// Layer norm and RMS norm over the rows [rows, cols] that x is from `axis` on, of f32, bf16 and f16, computed in f32:
//   xhat = (x - mean) inv_std, inv_std = 1 / sqrt(variance + epsilon), y = xhat weight + bias
//   w = dy weight;  dx = inv_std (w - mean_c(w) - xhat mean_c(w xhat));  dweight = sum_r(dy xhat);  dbias = sum_r(dy)
// RMS norm takes mean = 0 and has no bias. An absent weight stands for ones, an absent bias for zeros.
#include "kernels/cpu/block_rows.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/float_runs.h"
#include "kernels/cpu/norms/norms_table.h"
#include "kernels/cpu/supports.h"
#include "kernels/kernel_lines.h"
#include "kernels/rooms.h"

namespace lowtide::cpu {
namespace {

// Of a norm's operand x, and of its gradient's.
struct Norm {
  explicit Norm(const BoundCall& call, size_t x = 0)
      : rows(rows_at(call.inputs[x], call.attrs->i("axis"))),
        epsilon(static_cast<float>(call.attrs->f("epsilon", 0))) {}
  Rows rows;
  float epsilon;
};
struct NormGrad : Norm {
  explicit NormGrad(const BoundCall& call) : Norm(call, 1) {}
};

Stored stored_in(const TensorRef* tensor) { return stored_as(tensor ? tensor->dtype : DType::kF32); }

void* address_or_null(const TensorRef* tensor, int64_t offset) { return tensor ? address(*tensor, offset) : nullptr; }

// Weights and biases as floats: where they are, or widened into `room`, which moves on.
const float* widened(const TensorRef* tensor, int64_t cols, float*& room) {
  if (tensor == nullptr) return nullptr;
  float* buffer = room;
  if (tensor->dtype != DType::kF32) room += cols;
  return cols == 0 ? nullptr : read(*tensor, 0, 1, cols, buffer);
}
int64_t widened_floats(const TensorRef* tensor, int64_t cols) {
  return tensor != nullptr && tensor->dtype != DType::kF32 ? cols : 0;
}

KernelStatus layer_norm(const KernelCall& call, const Norm& norm) {
  const auto [rows, cols] = norm.rows;
  const TensorRef &x = call.inputs[0], *y = output(call, 0);
  auto* room = static_cast<float*>(call.scratch);
  const float *weight = widened(input(call, 1), cols, room), *bias = widened(input(call, 2), cols, room);
  float *mean = output_floats(call, 1), *inv_std = output_floats(call, 2);
  const auto run = norms_table().layer_norm[stored_in(&x)][stored_in(y)];
  for_row_chunks(rows, cols, 0.4, [&, cols = cols](int64_t r, int64_t n) {
    run(address(x, r * cols), weight, bias, address_or_null(y, r * cols), shifted(mean, r), shifted(inv_std, r), n,
        cols, norm.epsilon);
  });
  return nullptr;
}

KernelStatus rms_norm(const KernelCall& call, const Norm& norm) {
  const auto [rows, cols] = norm.rows;
  const TensorRef &x = call.inputs[0], *y = output(call, 0);
  auto* room = static_cast<float*>(call.scratch);
  const float* weight = widened(input(call, 1), cols, room);
  float* inv_std = output_floats(call, 1);
  const auto run = norms_table().rms_norm[stored_in(&x)][stored_in(y)];
  for_row_chunks(rows, cols, 0.4, [&, cols = cols](int64_t r, int64_t n) {
    run(address(x, r * cols), weight, address_or_null(y, r * cols), shifted(inv_std, r), n, cols, norm.epsilon);
  });
  return nullptr;
}

// Of the weight, and of layer norm's bias.
int64_t norm_scratch(const BoundCall& call) {
  const int64_t cols = Norm(call).rows.cols;
  return (widened_floats(input(call, 1), cols) + widened_floats(input(call, 2), cols)) * kFloatBytes;
}

struct GradOperands {
  const TensorRef &dy, &x;
  const float *mean, *inv_std;
  const TensorRef *weight, *dx, *dweight, *dbias;
};

KernelStatus norm_grad(const KernelCall& call, const NormGrad& norm, const GradOperands& g) {
  const auto [rows, cols] = norm.rows;
  const int64_t weights = g.dweight == nullptr ? 0 : cols, width = weights + (g.dbias == nullptr ? 0 : cols);
  const int64_t blocks = row_blocks(rows);
  // One partial holds dweight's columns, then dbias's, of those that are asked for; then the sums of them all.
  float *partials = static_cast<float*>(call.scratch), *sums = partials + blocks * width, *room = sums + width;
  const float* weight = widened(g.weight, cols, room);
  const auto run = norms_table().norm_grad[stored_in(&g.dy)][stored_in(&g.x)][stored_in(g.dx)];
  for_row_chunks(blocks, kRowsPerBlock * cols, 0.5, [&, rows = rows, cols = cols](int64_t begin, int64_t count) {
    for (int64_t b = begin; b < begin + count; ++b) {
      const int64_t first = b * kRowsPerBlock, n = std::min(kRowsPerBlock, rows - first);
      float* partial = partials + b * width;
      std::fill(partial, partial + width, 0.0f);
      run(address(g.dy, first * cols), address(g.x, first * cols), weight, shifted(g.mean, first), g.inv_std + first,
          address_or_null(g.dx, first * cols), g.dweight == nullptr ? nullptr : partial,
          g.dbias == nullptr ? nullptr : partial + weights, n, cols);
    }
  });
  const auto add_up = [&, rows = rows, cols = cols](const TensorRef* to, int64_t column) {
    if (to == nullptr) return;
    float* sum = to->dtype == DType::kF32 ? to->as<float>() : sums + column;
    add_row_blocks(partials + column, rows, width, sum, cols);
    if (to->dtype != DType::kF32) write(*to, 0, 1, cols, sum);
  };
  add_up(g.dweight, 0);
  add_up(g.dbias, weights);
  return nullptr;
}

KernelStatus layer_norm_grad(const KernelCall& call, const NormGrad& norm) {
  return norm_grad(call, norm,
                   {.dy = call.inputs[0],
                    .x = call.inputs[1],
                    .mean = input_floats(call, 2),
                    .inv_std = input_floats(call, 3),
                    .weight = input(call, 4),
                    .dx = output(call, 0),
                    .dweight = output(call, 1),
                    .dbias = output(call, 2)});
}

KernelStatus rms_norm_grad(const KernelCall& call, const NormGrad& norm) {
  return norm_grad(call, norm,
                   {.dy = call.inputs[0],
                    .x = call.inputs[1],
                    .mean = nullptr,
                    .inv_std = input_floats(call, 2),
                    .weight = input(call, 3),
                    .dx = output(call, 0),
                    .dweight = output(call, 1),
                    .dbias = nullptr});
}

int64_t norm_grad_scratch(const BoundCall& call) {
  const Rows at = NormGrad(call).rows;
  return ((row_blocks(at.rows) + 1) * 2 + 1) * at.cols * kFloatBytes;
}

// Rows of any of the three dtypes, which are computed in f32.
const char* supports_rows(const KernelQuery& query) {
  for (const OperandInfo& operand : query.inputs)
    if (operand.present && !is_readable_as(DType::kF32, operand.dtype)) return "neither f32, bf16 nor f16";
  return computed_dtype(*query.attrs, DType::kF32) == DType::kF32 ? nullptr : "computes another dtype";
}

}  // namespace

std::span<const Kernel> norms_kernels() {
  static constexpr Kernel kernels[] = {
#include "kernels/cpu/norms/list.inc"
  };
  return kernels;
}

}  // namespace lowtide::cpu
