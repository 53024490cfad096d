#include "kernels/cpu/loss/loss_table.h"
#include "kernels/cpu/vector_math.h"

namespace lowtide::cpu::LT_ISA {
namespace {

float log_sum_exp(const float* x, int64_t n, float* mean) {
  vf m[2] = {splat(-kInfinity), splat(-kInfinity)};
  int64_t c = 0;
  for (; c + 2 * kLanes <= n; c += 2 * kLanes) {
    m[0] = vmax(load(x + c), m[0]);
    m[1] = vmax(load(x + c + kLanes), m[1]);
  }
  for_vectors(n - c, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    m[0] = vmax(keep_lanes(load(x + c + i, count), count, -kInfinity), m[0]);
  });
  const float top = lane_max(vmax(m[0], m[1]));
  const float total = row_sum(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    return keep_lanes(exp_flushed(load(x + i, count) - top), count, 0);
  });
  if (mean != nullptr) {
    const float sum = row_sum(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA { return load(x + i, count); });
    *mean = sum / static_cast<float>(n);
  }
  return top + __builtin_logf(total);
}

void grad(const float* x, float* dx, int64_t n, float lse, float factor, float shift) {
  const vf by = splat(-shift);
  for_vectors(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    store(dx + i, fma(exp_flushed(load(x + i, count) - lse), splat(factor), by), count);
  });
}

void plane_log_sum_exp(const float* x, int64_t stride, int64_t classes, int64_t n, float* lse) {
  for_vectors(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    vf top = splat(-kInfinity), total = {};
    for (int64_t c = 0; c < classes; ++c) top = vmax(load(x + c * stride + i, count), top);
    for (int64_t c = 0; c < classes; ++c) total += exp_flushed(load(x + c * stride + i, count) - top);
    store(lse + i, top + log(total), count);
  });
}

void plane_grad(const float* x, float* dx, int64_t n, const float* lse, const float* factor, const float* g,
                float shift) {
  const vf by = splat(-shift);
  for_vectors(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    const vf p = exp_flushed(load(x + i, count) - load(lse + i, count));
    store(dx + i, fma(p, load(factor + i, count), load(g + i, count) * by), count);
  });
}

}  // namespace

constinit const LossTable loss_table = {log_sum_exp, grad, plane_log_sum_exp, plane_grad};

}  // namespace lowtide::cpu::LT_ISA
