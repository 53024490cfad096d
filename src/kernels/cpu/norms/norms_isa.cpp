#include "kernels/cpu/norms/norms_table.h"
#include "kernels/cpu/vector_math.h"

namespace lowtide::cpu::LT_ISA {
namespace {

template <class Count>
LT_INLINE vf load_or(const float* p, int64_t i, Count count, float absent) {
  return p == nullptr ? splat(absent) : load(p + i, count);
}

LT_INLINE void scale_row(const float* x, const float* weight, const float* bias, float* y, int64_t n, float mean,
                         float inv_std) {
  for_vectors(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    const vf xhat = (load(x + i, count) - mean) * inv_std;
    store(y + i, fma(xhat, load_or(weight, i, count, 1), load_or(bias, i, count, 0)), count);
  });
}

void layer_norm_rows(const float* x, const float* weight, const float* bias, float* y, float* mean, float* inv_std,
                     int64_t rows, int64_t cols, float eps) {
  for (int64_t r = 0; r < rows; ++r, x += cols) {
    const float total = row_sum(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA { return load(x + i, count); });
    const float m = total / static_cast<float>(cols);
    const float squares = row_sum(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
      const vf d = keep_lanes(load(x + i, count) - m, count, 0);
      return d * d;
    });
    const float scale = 1.0f / __builtin_sqrtf(squares / static_cast<float>(cols) + eps);
    if (y != nullptr) scale_row(x, weight, bias, y + r * cols, cols, m, scale);
    if (mean != nullptr) mean[r] = m;
    if (inv_std != nullptr) inv_std[r] = scale;
  }
}

void rms_norm_rows(const float* x, const float* weight, float* y, float* inv_std, int64_t rows, int64_t cols,
                   float eps) {
  for (int64_t r = 0; r < rows; ++r, x += cols) {
    const float squares = row_sum(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
      const vf v = load(x + i, count);
      return v * v;
    });
    const float scale = 1.0f / __builtin_sqrtf(squares / static_cast<float>(cols) + eps);
    if (y != nullptr) scale_row(x, weight, nullptr, y + r * cols, cols, 0, scale);
    if (inv_std != nullptr) inv_std[r] = scale;
  }
}

LT_INLINE void add_to(float* sums, int64_t i, auto count, vf v) {
  if (sums != nullptr) store(sums + i, load(sums + i, count) + v, count);
}

void norm_grad_rows(const float* dy, const float* x, const float* weight, const float* mean, const float* inv_std,
                    float* dx, float* dweight, float* dbias, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r, x += cols, dy += cols) {
    const float m = mean == nullptr ? 0.0f : mean[r], scale = inv_std[r];
    float total = 0;
    const float dot = row_sum(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
      const vf g = load(dy + i, count), xhat = (load(x + i, count) - m) * scale;
      const vf product = g * xhat;
      add_to(dweight, i, count, product);
      add_to(dbias, i, count, g);
      return product * load_or(weight, i, count, 1);
    });
    if (dx == nullptr) continue;
    if (mean != nullptr) {
      total = row_sum(cols, [&](int64_t i, auto count)
                                LT_INLINE_LAMBDA { return load(dy + i, count) * load_or(weight, i, count, 1); });
    }
    const float mean_w = total / static_cast<float>(cols), mean_dot = dot / static_cast<float>(cols);
    for_vectors(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
      const vf w = load(dy + i, count) * load_or(weight, i, count, 1);
      const vf xhat = (load(x + i, count) - m) * scale;
      store(dx + i, fma(-xhat, splat(mean_dot), w - mean_w) * scale, count);
    });
    dx += cols;
  }
}

}  // namespace

constinit const NormsTable norms_table = {layer_norm_rows, norm_grad_rows, rms_norm_rows};

}  // namespace lowtide::cpu::LT_ISA
