// Activations and their derivatives on vectors. For files *_isa.cpp only.
#pragma once

#include "kernels/cpu/vector_math.h"

namespace lowtide::cpu::LT_ISA {

constexpr float kGeluLinear = 2 * 0.7978845608028654f;  // 2 sqrt(2/pi): tanh(u) = 2 sigmoid(2u) - 1
constexpr float kGeluCubic = 2 * 0.7978845608028654f * 0.044715f;

// The normal distribution: density exp(-x^2/2), not divided by sqrt(2 pi), and the tail Phi(-|x|).
struct Normal {
  vf density;
  vf tail;
};

// The tail is the density times a polynomial in |x| (a fit of ours), within 1e-7; |x| times it is within 5e-8. One exp
// serves both, and no branch is computed for nothing.
LT_INLINE Normal normal(vf x) {
  const vf t = vmin(splat(5.0f), abs(x));
  const vf density = exp_flushed(x * x * -0.5f);
  vf p = splat(-2.3277723e-07f);
  p = fma(p, t, splat(6.006533e-06f));
  p = fma(p, t, splat(-6.986643e-05f));
  p = fma(p, t, splat(0.00049089844f));
  p = fma(p, t, splat(-0.0023723147f));
  p = fma(p, t, splat(0.008589636f));
  p = fma(p, t, splat(-0.024970079f));
  p = fma(p, t, splat(0.06154669f));
  p = fma(p, t, splat(-0.13263996f));
  p = fma(p, t, splat(0.24993467f));
  p = fma(p, t, splat(-0.3989371f));
  p = fma(p, t, splat(0.4999999f));
  return {density, density * p};
}

// x Phi(x) = max(x, 0) - |x| Phi(-|x|). +inf must not meet the zero tail; -inf does, and is NaN as in PyTorch.
LT_INLINE vf gelu(vf x) { return fma(-abs(vmin(splat(20.0f), x)), normal(x).tail, vmax(splat(0.0f), x)); }

// Phi(x) + x phi(x): NaN at both infinities, as in PyTorch.
LT_INLINE vf gelu_slope(vf x) {
  const Normal at = normal(x);
  const vf cdf = x < splat(0.0f) ? at.tail : 1.0f - at.tail;
  return fma(x * 0.39894228f, at.density, cdf);
}

LT_INLINE vf fast_gelu(vf x) {
  const vf u = x * fma(x * x, splat(kGeluCubic), splat(kGeluLinear));
  return x * sigmoid(u);
}

LT_INLINE vf fast_gelu_slope(vf x) {
  const vf square = x * x;
  const vf s = sigmoid(x * fma(square, splat(kGeluCubic), splat(kGeluLinear)));
  const vf u_slope = fma(square, splat(3 * kGeluCubic), splat(kGeluLinear));
  return fma(x * s * (1.0f - s), u_slope, s);
}

// x sigmoid(a x)
LT_INLINE vf swish(vf x, vf a) { return x * sigmoid(a * x); }
LT_INLINE vf swish_slope(vf x, vf a) {
  const vf s = sigmoid(a * x);
  return fma(a * x * s, 1.0f - s, s);
}

// x t, t = tanh(log(1 + e)) = n / (n + 2), e = exp(x), n = e (e + 2); from 20 on t is 1.
constexpr float kMishIsLinear = 20;
LT_INLINE vf mish(vf x) {
  const vf e = exp_flushed(vmin(splat(kMishIsLinear), x)), n = e * (e + 2.0f);
  return x * (n / (n + 2.0f));
}

// t + x (1 - t^2) sigmoid(x) = t + x 4 e (1 + e) / (n + 2)^2: NaN at both infinities, as in PyTorch.
LT_INLINE vf mish_slope(vf x) {
  const vf e = exp_flushed(vmin(splat(kMishIsLinear), x)), n = e * (e + 2.0f);
  const vf share = 1.0f / (n + 2.0f), bend = 4.0f * e * (1.0f + e) * share * share;
  return fma(x, x < splat(kMishIsLinear) ? bend : vf{}, n * share);
}

// log(1 + y) for y in [0, 1]: the rounding error of 1 + y is put back.
LT_INLINE vf log1p_unit(vf y) {
  const vf u = 1.0f + y;
  return log(u) + (y - (u - 1.0f)) / u;
}

LT_INLINE vf softplus(vf x) {
  const vf y = vmax(x, splat(0.0f)) + log1p_unit(exp_flushed(-abs(x)));
  return x == x ? y : x;
}

// exp(x) - 1 for x <= 0: by tanh, without cancellation.
LT_INLINE vf expm1_negative(vf x) {
  const vf t = tanh(0.5f * x);
  return 2.0f * t / (1.0f - t);
}

LT_INLINE vf hard_sigmoid(vf x) { return vmin(splat(1.0f), vmax(splat(0.0f), fma(x, splat(1.0f / 6), splat(0.5f)))); }

}  // namespace lowtide::cpu::LT_ISA
