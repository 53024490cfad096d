// Layer norm and RMS norm over the f32 rows [rows, cols] that x is from `axis` on:
//   xhat = (x - mean) inv_std, inv_std = 1 / sqrt(variance + epsilon), y = xhat weight + bias
//   w = dy weight;  dx = inv_std (w - mean_c(w) - xhat mean_c(w xhat));  dweight = sum_r(dy xhat);  dbias = sum_r(dy)
// RMS norm takes mean = 0 and has no bias. An absent weight stands for ones, an absent bias for zeros.
#include "kernels/cpu/block_rows.h"
#include "kernels/cpu/dense.h"
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

KernelStatus layer_norm(const KernelCall& call, const Norm& norm) {
  const auto [at, epsilon] = norm;
  const float *x = input_floats(call, 0), *weight = input_floats(call, 1), *bias = input_floats(call, 2);
  float *y = output_floats(call, 0), *mean = output_floats(call, 1), *inv_std = output_floats(call, 2);
  for_row_chunks(at.rows, at.cols, 0.4, [&](int64_t r, int64_t n) {
    norms_table().layer_norm(x + r * at.cols, weight, bias, shifted(y, r * at.cols), shifted(mean, r),
                             shifted(inv_std, r), n, at.cols, epsilon);
  });
  return nullptr;
}

KernelStatus rms_norm(const KernelCall& call, const Norm& norm) {
  const auto [at, epsilon] = norm;
  const float *x = input_floats(call, 0), *weight = input_floats(call, 1);
  float *y = output_floats(call, 0), *inv_std = output_floats(call, 1);
  for_row_chunks(at.rows, at.cols, 0.3, [&](int64_t r, int64_t n) {
    norms_table().rms_norm(x + r * at.cols, weight, shifted(y, r * at.cols), shifted(inv_std, r), n, at.cols, epsilon);
  });
  return nullptr;
}

struct GradOperands {
  const float *dy, *x, *mean, *inv_std, *weight;
  float *dx, *dweight, *dbias;
};

KernelStatus norm_grad(const KernelCall& call, const NormGrad& norm, const GradOperands& g) {
  const auto [rows, cols] = norm.rows;
  const auto rows_from = [&g, cols = cols](int64_t r, int64_t n, float* dweight_part, float* dbias_part) {
    norms_table().norm_grad(g.dy + r * cols, g.x + r * cols, g.weight, shifted(g.mean, r), g.inv_std + r,
                            shifted(g.dx, r * cols), dweight_part, dbias_part, n, cols);
  };
  if (g.dweight == nullptr && g.dbias == nullptr) {
    for_row_chunks(rows, cols, 0.5, [&](int64_t r, int64_t n) { rows_from(r, n, nullptr, nullptr); });
    return nullptr;
  }
  // One partial holds dweight's columns, then dbias's, of those that are asked for.
  const int64_t weights = g.dweight == nullptr ? 0 : cols, width = weights + (g.dbias == nullptr ? 0 : cols);
  float* partials = static_cast<float*>(call.scratch);
  for_row_blocks(rows, width, 0.4, partials, [&](int64_t r, int64_t n, float* partial) {
    rows_from(r, n, g.dweight == nullptr ? nullptr : partial, g.dbias == nullptr ? nullptr : partial + weights);
  });
  if (g.dweight != nullptr) add_row_blocks(partials, rows, width, g.dweight, cols);
  if (g.dbias != nullptr) add_row_blocks(partials + weights, rows, width, g.dbias, cols);
  return nullptr;
}

KernelStatus layer_norm_grad(const KernelCall& call, const NormGrad& norm) {
  return norm_grad(call, norm,
                   {.dy = input_floats(call, 0),
                    .x = input_floats(call, 1),
                    .mean = input_floats(call, 2),
                    .inv_std = input_floats(call, 3),
                    .weight = input_floats(call, 4),
                    .dx = output_floats(call, 0),
                    .dweight = output_floats(call, 1),
                    .dbias = output_floats(call, 2)});
}

KernelStatus rms_norm_grad(const KernelCall& call, const NormGrad& norm) {
  return norm_grad(call, norm,
                   {.dy = input_floats(call, 0),
                    .x = input_floats(call, 1),
                    .mean = nullptr,
                    .inv_std = input_floats(call, 2),
                    .weight = input_floats(call, 3),
                    .dx = output_floats(call, 0),
                    .dweight = output_floats(call, 1),
                    .dbias = nullptr});
}

int64_t norm_grad_scratch(const BoundCall& call) {
  const Rows at = NormGrad(call).rows;
  return row_blocks(at.rows) * 2 * at.cols * kFloatBytes;
}

}  // namespace

std::span<const Kernel> norms_kernels() {
  static constexpr Kernel kernels[] = {
#include "kernels/cpu/norms/list.inc"
  };
  return kernels;
}

}  // namespace lowtide::cpu
