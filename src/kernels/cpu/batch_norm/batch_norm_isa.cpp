#include "kernels/cpu/batch_norm/batch_norm_table.h"
#include "kernels/cpu/simd.h"

namespace lowtide::cpu::LT_ISA {
namespace {

void plane_moments(const float* x, int64_t n, float* mean, float* squares) {
  const float m =
      row_sum(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA { return load(x + i, count); }) / static_cast<float>(n);
  *mean = m;
  *squares = row_sum(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    const vf d = keep_lanes(load(x + i, count) - m, count, 0);
    return d * d;
  });
}

void row_moments(const float* x, int64_t rows, int64_t channels, float* mean, float* squares) {
  const float share = 1.0f / static_cast<float>(rows);
  for_vectors(channels, [&](int64_t c, auto count) LT_INLINE_LAMBDA {
    vf total = {}, square = {};
    for (int64_t r = 0; r < rows; ++r) total += load(x + r * channels + c, count);
    const vf m = total * share;
    for (int64_t r = 0; r < rows; ++r) {
      const vf d = load(x + r * channels + c, count) - m;
      square = fma(d, d, square);
    }
    store(mean + c, m, count);
    store(squares + c, square, count);
  });
}

void plane_affine(const float* x, float* y, int64_t n, float a, float b) {
  const vf va = splat(a), vb = splat(b);
  for_vectors(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA { store(y + i, fma(load(x + i, count), va, vb), count); });
}

void row_affine(const float* x, float* y, int64_t rows, int64_t channels, const float* a, const float* b) {
  for (int64_t r = 0; r < rows; ++r, x += channels, y += channels) {
    for_vectors(channels, [&](int64_t c, auto count) LT_INLINE_LAMBDA {
      store(y + c, fma(load(x + c, count), load(a + c, count), load(b + c, count)), count);
    });
  }
}

void plane_sums(const float* dy, const float* x, int64_t n, float mean, float* sum, float* dot) {
  *sum = row_sum(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA { return load(dy + i, count); });
  *dot = row_sum(
      n, [&](int64_t i, auto count) LT_INLINE_LAMBDA { return load(dy + i, count) * (load(x + i, count) - mean); });
}

void row_sums(const float* dy, const float* x, int64_t rows, int64_t channels, const float* mean, float* sum,
              float* dot) {
  for_vectors(channels, [&](int64_t c, auto count) LT_INLINE_LAMBDA {
    const vf m = load(mean + c, count);
    vf total = {}, product = {};
    for (int64_t r = 0; r < rows; ++r) {
      const vf g = load(dy + r * channels + c, count);
      total += g;
      product = fma(g, load(x + r * channels + c, count) - m, product);
    }
    store(sum + c, total, count);
    store(dot + c, product, count);
  });
}

void plane_grad(const float* dy, const float* x, float* dx, int64_t n, float mean, float a, float b, float c) {
  const vf va = splat(a), vb = splat(b), vc = splat(c);
  for_vectors(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    store(dx + i, fma(load(dy + i, count), va, fma(load(x + i, count) - mean, vb, vc)), count);
  });
}

void row_grad(const float* dy, const float* x, float* dx, int64_t rows, int64_t channels, const float* mean,
              const float* a, const float* b, const float* c) {
  for (int64_t r = 0; r < rows; ++r, dy += channels, x += channels, dx += channels) {
    for_vectors(channels, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
      const vf centred = load(x + i, count) - load(mean + i, count);
      const vf rest = fma(centred, load(b + i, count), load(c + i, count));
      store(dx + i, fma(load(dy + i, count), load(a + i, count), rest), count);
    });
  }
}

}  // namespace

constinit const BatchNormTable batch_norm_table = {plane_moments, row_moments, plane_affine, row_affine,
                                                   plane_sums,    row_sums,    plane_grad,   row_grad};

}  // namespace lowtide::cpu::LT_ISA
