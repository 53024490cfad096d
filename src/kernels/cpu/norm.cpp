#include "kernels/cpu/norm.h"

#include "kernels/cpu/block_rows.h"
#include "kernels/cpu/norm_table.h"

namespace lowtide::cpu {
namespace {

float* shifted(float* p, int64_t by) { return p == nullptr ? nullptr : p + by; }
const float* shifted(const float* p, int64_t by) { return p == nullptr ? nullptr : p + by; }

void norm_grad(const float* dy, const float* x, const float* gamma, const float* mean, const float* rstd, float* dx,
               float* dgamma, float* dbeta, int64_t rows, int64_t cols, void* scratch) {
  const auto rows_at = [&](int64_t r, int64_t n, float* dgamma_part, float* dbeta_part) {
    norm_table().norm_grad(dy + r * cols, x + r * cols, gamma, shifted(mean, r), rstd + r, shifted(dx, r * cols),
                           dgamma_part, dbeta_part, n, cols);
  };
  if (dgamma == nullptr && dbeta == nullptr) {
    for_row_chunks(rows, cols, 0.5, [&](int64_t r, int64_t n) { rows_at(r, n, nullptr, nullptr); });
    return;
  }
  // One partial holds dgamma's columns, then dbeta's, of those that are asked for.
  const int64_t gammas = dgamma == nullptr ? 0 : cols, width = gammas + (dbeta == nullptr ? 0 : cols);
  float* partials = static_cast<float*>(scratch);
  for_row_blocks(rows, width, 0.4, partials, [&](int64_t r, int64_t n, float* partial) {
    rows_at(r, n, dgamma == nullptr ? nullptr : partial, dbeta == nullptr ? nullptr : partial + gammas);
  });
  if (dgamma != nullptr) add_row_blocks(partials, rows, width, dgamma, cols);
  if (dbeta != nullptr) add_row_blocks(partials + gammas, rows, width, dbeta, cols);
}

}  // namespace

void layer_norm(const float* x, const float* gamma, const float* beta, float* y, float* mean, float* rstd, int64_t rows,
                int64_t cols, float eps) {
  for_row_chunks(rows, cols, 0.4, [&](int64_t r, int64_t n) {
    norm_table().layer_norm(x + r * cols, gamma, beta, shifted(y, r * cols), shifted(mean, r), shifted(rstd, r), n,
                            cols, eps);
  });
}

void layer_norm_grad(const float* dy, const float* x, const float* gamma, const float* mean, const float* rstd,
                     float* dx, float* dgamma, float* dbeta, int64_t rows, int64_t cols, void* scratch) {
  norm_grad(dy, x, gamma, mean, rstd, dx, dgamma, dbeta, rows, cols, scratch);
}

void rms_norm(const float* x, const float* gamma, float* y, float* rstd, int64_t rows, int64_t cols, float eps) {
  for_row_chunks(rows, cols, 0.3, [&](int64_t r, int64_t n) {
    norm_table().rms_norm(x + r * cols, gamma, shifted(y, r * cols), shifted(rstd, r), n, cols, eps);
  });
}

void rms_norm_grad(const float* dy, const float* x, const float* gamma, const float* rstd, float* dx, float* dgamma,
                   int64_t rows, int64_t cols, void* scratch) {
  norm_grad(dy, x, gamma, nullptr, rstd, dx, dgamma, nullptr, rows, cols, scratch);
}

int64_t norm_grad_scratch_bytes(int64_t rows, int64_t cols) {
  return row_blocks(rows) * 2 * cols * static_cast<int64_t>(sizeof(float));
}

}  // namespace lowtide::cpu
