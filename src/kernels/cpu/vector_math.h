// exp, log, tanh, erf, sigmoid, sin, cos on vectors, within about 2 ulp of the exact value over the whole range of
// floats, denormal ends, infinities and NaN included, unless a line says otherwise. For files *_isa.cpp only.
// The polynomials are minimax fits of ours (weighted least squares towards equal relative error).
#pragma once

#include "kernels/cpu/simd.h"

namespace lowtide::cpu::LT_ISA {

constexpr float kInfinity = __builtin_inff();
constexpr float kNaN = __builtin_nanf("");

// exp(r) for |r| <= ln(2)/2 and the integer n of x = n ln(2) + r.
struct ExpParts {
  vf mantissa;
  vf n;
};

LT_INLINE ExpParts exp_parts(vf x) {
  const vf n = round_even(x * 1.44269504f);
  vf r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  vf p = splat(0.001381445f);
  p = fma(p, r, splat(0.008368782f));
  p = fma(p, r, splat(0.041668396f));
  p = fma(p, r, splat(0.1666652f));
  p = fma(p, r, splat(0.49999994f));
  return {fma(p, r * r, r) + 1.0f, n};
}

LT_INLINE vf power_of_two(vi n) { return (vf)(((vu)n + 127u) << 23); }

LT_INLINE vf exp(vf x) {
  const vf bounded = vmin(splat(89.0f), vmax(splat(-104.0f), x));
  const ExpParts parts = exp_parts(bounded);
  const vi n = to_int(parts.n), half = n >> 1;
  const vf y = parts.mantissa * power_of_two(half) * power_of_two(n - half);
  return x == x ? y : x;
}

// For x <= 88 only: results below 2^-126 are 0 (exp(-inf) is exactly 0). One multiplication less than exp.
LT_INLINE vf exp_flushed(vf x) {
  const ExpParts parts = exp_parts(vmax(splat(-88.0f), x));
  return parts.mantissa * power_of_two(to_int(parts.n));
}

LT_INLINE vf log(vf x) {
  const vi tiny = x < 1.17549435e-38f;
  const vf scaled = tiny ? x * 8388608.0f : x;
  // The mantissa in [sqrt(1/2), sqrt(2)): subtract the bits of sqrt(1/2) to find the exponent.
  const vi bits = (vi)((vu)scaled - 0x3f3504f3u);  // unsigned: negative x wraps
  const vi exponent = bits >> 23;
  const vf f = as_float((bits & 0x7fffff) + 0x3f3504f3) - 1.0f;
  const vf n = to_float(exponent) - (tiny ? splat(23.0f) : splat(0.0f));
  vf p = splat(0.06746521f);
  p = fma(p, f, splat(-0.11675737f));
  p = fma(p, f, splat(0.11888263f));
  p = fma(p, f, splat(-0.12405577f));
  p = fma(p, f, splat(0.14219536f));
  p = fma(p, f, splat(-0.16667996f));
  p = fma(p, f, splat(0.20002119f));
  p = fma(p, f, splat(-0.2500001f));
  p = fma(p, f, splat(0.33333313f));
  const vf square = f * f;
  vf y = fma(n, splat(-2.12194440e-4f), p * square * f);
  y = fma(square, splat(-0.5f), y) + f;
  y = fma(n, splat(0.693359375f), y);
  y = x == splat(0.0f) ? splat(-kInfinity) : y;
  y = x < splat(0.0f) ? splat(kNaN) : y;
  return x < splat(kInfinity) ? y : x;
}

// Results below 2^-126 are 0.
LT_INLINE vf sigmoid(vf x) {
  const vf e = exp_flushed(-abs(x));
  const vf positive = 1.0f / (1.0f + e);
  const vf y = x < splat(0.0f) ? e * positive : positive;
  return x == x ? y : x;
}

LT_INLINE vf tanh(vf x) {
  const vf t = abs(x), s = x * x;
  vf p = splat(-0.005704913f);
  p = fma(p, s, splat(0.020639013f));
  p = fma(p, s, splat(-0.05373969f));
  p = fma(p, s, splat(0.13331442f));
  p = fma(p, s, splat(-0.3333328f));
  const vf small = fma(p * s, x, x);
  const vf e = exp_flushed(t * -2.0f);
  const vf large = copy_sign((1.0f - e) / (1.0f + e), x);
  const vf y = t < splat(0.625f) ? small : large;
  return x == x ? y : x;
}

LT_INLINE vf erf(vf x) {
  const vf t = vmin(splat(4.1f), abs(x)), s = x * x;
  vf p = splat(7.85383e-05f);
  p = fma(p, s, splat(-0.00080101844f));
  p = fma(p, s, splat(0.005188327f));
  p = fma(p, s, splat(-0.026853811f));
  p = fma(p, s, splat(0.112835854f));
  p = fma(p, s, splat(-0.37612626f));
  p = fma(p, s, splat(0.12837917f));
  const vf small = fma(p, x, x);
  vf q = splat(-2.169825e-05f);
  q = fma(q, t, splat(0.00044148034f));
  q = fma(q, t, splat(-0.0042053238f));
  q = fma(q, t, splat(0.025210446f));
  q = fma(q, t, splat(-0.10842227f));
  q = fma(q, t, splat(-0.63321626f));
  q = fma(q, t, splat(-1.1295804f));
  q = fma(q, t, splat(0.0001884859f));
  const vf large = copy_sign(1.0f - exp_flushed(q), x);
  const vf y = abs(x) < splat(1.0f) ? small : large;
  return x == x ? y : x;
}

constexpr float kLargestAngle = 8192.0f;

// sin(x + quarters * pi / 2) for |x| <= kLargestAngle. Multiples of the first three parts of pi / 2 are exact: each has
// 11 bits, and no count of quarters more than 13.
LT_INLINE vf sine(vf x, int quarters) {
  const vf n = round_even(x * 0.636619772f);
  vf r = fma(n, splat(-1.5703125f), x);
  r = fma(n, splat(-4.837512969970703e-4f), r);
  r = fma(n, splat(-7.549533620476723e-8f), r);
  r = fma(n, splat(-2.5633440682570896e-12f), r);
  const vf square = r * r;
  vf p = splat(-0.00019514957f);
  p = fma(p, square, splat(0.008332158f));
  p = fma(p, square, splat(-0.16666655f));
  const vf sin = fma(p * square, r, r);
  vf q = splat(2.4432784e-05f);
  q = fma(q, square, splat(-0.0013887313f));
  q = fma(q, square, splat(0.041666646f));
  const vf cos = fma(q * square, square, fma(square, splat(-0.5f), splat(1.0f)));
  const vi turned = to_int(n) + quarters;
  const vf y = (turned & 1) == 0 ? sin : cos;
  return as_float(as_int(y) ^ ((turned & 2) << 30));
}

// Larger angles, infinities and NaN: each lane by itself.
template <class F>
LT_INLINE vf sine_or_each(vf x, int quarters, F each) {
  if (!any_lane(!(abs(x) <= splat(kLargestAngle)))) return sine(x, quarters);
  for (int i = 0; i < kLanes; ++i) x[i] = each(x[i]);
  return x;
}
LT_INLINE vf sin(vf x) {
  const vf y = sine_or_each(x, 0, [](float angle) { return __builtin_sinf(angle); });
  return x == splat(0.0f) ? x : y;  // -0 stays what it is
}
LT_INLINE vf cos(vf x) {
  return sine_or_each(x, 1, [](float angle) { return __builtin_cosf(angle); });
}

}  // namespace lowtide::cpu::LT_ISA
