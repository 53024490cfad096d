#include "kernels/cpu/softmax/softmax_table.h"
#include "kernels/cpu/vector_math.h"

namespace lowtide::cpu::LT_ISA {
namespace {

void softmax_rows(const float* x, float* y, int64_t rows, int64_t cols) {
  for (; rows > 0; --rows, x += cols, y += cols) {
    const vf top = splat(row_max(x, cols, 1));
    const float total = row_sum(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
      const vf e = keep_lanes(exp_flushed(load(x + i, count) - top), count, 0);
      store(y + i, e, count);
      return e;
    });
    const vf share = splat(1.0f / total);
    for_vectors(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA { store(y + i, load(y + i, count) * share, count); });
  }
}

void log_softmax_rows(const float* x, float* y, int64_t rows, int64_t cols) {
  for (; rows > 0; --rows, x += cols, y += cols) {
    const float top = row_max(x, cols, 1);
    const float total = row_sum(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
      return keep_lanes(exp_flushed(load(x + i, count) - top), count, 0);
    });
    const vf log_total = splat(__builtin_logf(total));
    for_vectors(cols, [&](int64_t i, auto count)
                          LT_INLINE_LAMBDA { store(y + i, (load(x + i, count) - top) - log_total, count); });
  }
}

void softmax_grad_rows(const float* y, const float* dy, float* dx, int64_t rows, int64_t cols) {
  for (; rows > 0; --rows, y += cols, dy += cols, dx += cols) {
    const vf dot = splat(row_sum(
        cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA { return load(y + i, count) * load(dy + i, count); }));
    for_vectors(cols, [&](int64_t i, auto count)
                          LT_INLINE_LAMBDA { store(dx + i, (load(dy + i, count) - dot) * load(y + i, count), count); });
  }
}

void log_softmax_grad_rows(const float* y, const float* dy, float* dx, int64_t rows, int64_t cols) {
  for (; rows > 0; --rows, y += cols, dy += cols, dx += cols) {
    const vf total = splat(-row_sum(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA { return load(dy + i, count); }));
    for_vectors(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
      store(dx + i, fma(exp_flushed(load(y + i, count)), total, load(dy + i, count)), count);
    });
  }
}

template <class Count>
LT_INLINE vf plane_max(const float* x, int64_t stride, int64_t size, Count count) {
  vf top = splat(-kInfinity);
  for (int64_t k = 0; k < size; ++k) top = vmax(load(x + k * stride, count), top);
  return top;
}

void plane_softmax(const float* x, float* y, int64_t stride, int64_t size, int64_t n) {
  for_vectors(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    const vf top = plane_max(x + i, stride, size, count);
    vf total = {};
    for (int64_t at = i; at < size * stride; at += stride) {
      const vf e = exp_flushed(load(x + at, count) - top);
      store(y + at, e, count);
      total += e;
    }
    const vf share = splat(1) / total;
    for (int64_t at = i; at < size * stride; at += stride) store(y + at, load(y + at, count) * share, count);
  });
}

void plane_log_softmax(const float* x, float* y, int64_t stride, int64_t size, int64_t n) {
  for_vectors(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    const vf top = plane_max(x + i, stride, size, count);
    vf total = {};
    for (int64_t at = i; at < size * stride; at += stride) total += exp_flushed(load(x + at, count) - top);
    const vf log_total = log(total);
    for (int64_t at = i; at < size * stride; at += stride)
      store(y + at, (load(x + at, count) - top) - log_total, count);
  });
}

void plane_softmax_grad(const float* y, const float* dy, float* dx, int64_t stride, int64_t size, int64_t n) {
  for_vectors(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    vf dot = {};
    for (int64_t at = i; at < size * stride; at += stride) dot = fma(load(y + at, count), load(dy + at, count), dot);
    for (int64_t at = i; at < size * stride; at += stride)
      store(dx + at, (load(dy + at, count) - dot) * load(y + at, count), count);
  });
}

void plane_log_softmax_grad(const float* y, const float* dy, float* dx, int64_t stride, int64_t size, int64_t n) {
  for_vectors(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    vf total = {};
    for (int64_t at = i; at < size * stride; at += stride) total += load(dy + at, count);
    for (int64_t at = i; at < size * stride; at += stride)
      store(dx + at, fma(exp_flushed(load(y + at, count)), -total, load(dy + at, count)), count);
  });
}

}  // namespace

constinit const SoftmaxTable softmax_table = {softmax_rows,          log_softmax_rows,      softmax_grad_rows,
                                              log_softmax_grad_rows, plane_softmax,         plane_log_softmax,
                                              plane_softmax_grad,    plane_log_softmax_grad};

}  // namespace lowtide::cpu::LT_ISA
