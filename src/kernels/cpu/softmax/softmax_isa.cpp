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

}  // namespace

constinit const SoftmaxTable softmax_table = {softmax_rows, log_softmax_rows, softmax_grad_rows, log_softmax_grad_rows};

}  // namespace lowtide::cpu::LT_ISA
