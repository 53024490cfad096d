#include "kernels/cpu/half_vectors.h"
#include "kernels/cpu/norms/norms_table.h"
#include "kernels/cpu/vector_math.h"

namespace lowtide::cpu::LT_ISA {
namespace {

template <class Count>
LT_INLINE vf load_or(const float* p, int64_t i, Count count, float absent) {
  return p == nullptr ? splat(absent) : load(p + i, count);
}

template <class S>
using Number = typename S::Number;

// Of x stored as X, to y stored as Y.
template <class X, class Y>
LT_INLINE void scale_row(const Number<X>* x, const float* weight, const float* bias, Number<Y>* y, int64_t n,
                         float mean, float inv_std) {
  for_vectors(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    const vf xhat = (X::load(x + i, count) - mean) * inv_std;
    Y::store(y + i, fma(xhat, load_or(weight, i, count, 1), load_or(bias, i, count, 0)), count);
  });
}

template <class X, class Y>
void layer_norm_rows(const void* rows_of_x, const float* weight, const float* bias, void* y, float* mean,
                     float* inv_std, int64_t rows, int64_t cols, float eps) {
  const auto* x = (const Number<X>*)rows_of_x;
  for (int64_t r = 0; r < rows; ++r, x += cols) {
    const float total = row_sum(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA { return X::load(x + i, count); });
    const float m = total / static_cast<float>(cols);
    const float squares = row_sum(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
      const vf d = keep_lanes(X::load(x + i, count) - m, count, 0);
      return d * d;
    });
    const float scale = 1.0f / __builtin_sqrtf(squares / static_cast<float>(cols) + eps);
    if (y != nullptr) scale_row<X, Y>(x, weight, bias, (Number<Y>*)y + r * cols, cols, m, scale);
    if (mean != nullptr) mean[r] = m;
    if (inv_std != nullptr) inv_std[r] = scale;
  }
}

template <class X, class Y>
void rms_norm_rows(const void* rows_of_x, const float* weight, void* y, float* inv_std, int64_t rows, int64_t cols,
                   float eps) {
  const auto* x = (const Number<X>*)rows_of_x;
  for (int64_t r = 0; r < rows; ++r, x += cols) {
    const float squares = row_sum(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
      const vf v = X::load(x + i, count);
      return v * v;
    });
    const float scale = 1.0f / __builtin_sqrtf(squares / static_cast<float>(cols) + eps);
    if (y != nullptr) scale_row<X, Y>(x, weight, nullptr, (Number<Y>*)y + r * cols, cols, 0, scale);
    if (inv_std != nullptr) inv_std[r] = scale;
  }
}

LT_INLINE void add_to(float* sums, int64_t i, auto count, vf v) {
  if (sums != nullptr) store(sums + i, load(sums + i, count) + v, count);
}

template <class DY, class X, class DX>
void norm_grad_rows(const void* rows_of_dy, const void* rows_of_x, const float* weight, const float* mean,
                    const float* inv_std, void* rows_of_dx, float* dweight, float* dbias, int64_t rows, int64_t cols) {
  const auto* dy = (const Number<DY>*)rows_of_dy;
  const auto* x = (const Number<X>*)rows_of_x;
  auto* dx = (Number<DX>*)rows_of_dx;
  for (int64_t r = 0; r < rows; ++r, x += cols, dy += cols) {
    const float m = mean == nullptr ? 0.0f : mean[r], scale = inv_std[r];
    float total = 0;
    const float dot = row_sum(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
      const vf g = DY::load(dy + i, count), xhat = (X::load(x + i, count) - m) * scale;
      const vf product = g * xhat;
      add_to(dweight, i, count, product);
      add_to(dbias, i, count, g);
      return product * load_or(weight, i, count, 1);
    });
    if (dx == nullptr) continue;
    if (mean != nullptr) {
      total = row_sum(cols, [&](int64_t i, auto count)
                                LT_INLINE_LAMBDA { return DY::load(dy + i, count) * load_or(weight, i, count, 1); });
    }
    const float mean_w = total / static_cast<float>(cols), mean_dot = dot / static_cast<float>(cols);
    for_vectors(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
      const vf w = DY::load(dy + i, count) * load_or(weight, i, count, 1);
      const vf xhat = (X::load(x + i, count) - m) * scale;
      DX::store(dx + i, fma(-xhat, splat(mean_dot), w - mean_w) * scale, count);
    });
    dx += cols;
  }
}

template <class First, class Second>
constexpr void fill_pairs(NormsTable& table, Stored first, Stored second) {
  table.layer_norm[first][second] = layer_norm_rows<First, Second>;
  table.rms_norm[first][second] = rms_norm_rows<First, Second>;
  table.norm_grad[first][second][kStoredF32] = norm_grad_rows<First, Second, Floats>;
  table.norm_grad[first][second][kStoredBF16] = norm_grad_rows<First, Second, Halves<true>>;
  table.norm_grad[first][second][kStoredF16] = norm_grad_rows<First, Second, Halves<false>>;
}
template <class First>
constexpr void fill(NormsTable& table, Stored first) {
  fill_pairs<First, Floats>(table, first, kStoredF32);
  fill_pairs<First, Halves<true>>(table, first, kStoredBF16);
  fill_pairs<First, Halves<false>>(table, first, kStoredF16);
}
constexpr NormsTable make_table() {
  NormsTable table = {};
  fill<Floats>(table, kStoredF32);
  fill<Halves<true>>(table, kStoredBF16);
  fill<Halves<false>>(table, kStoredF16);
  return table;
}

}  // namespace

constinit const NormsTable norms_table = make_table();

}  // namespace lowtide::cpu::LT_ISA
