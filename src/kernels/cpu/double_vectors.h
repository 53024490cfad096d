// Vectors of doubles of one instruction set, half as many as of floats, and exp and log on them. For files *_isa.cpp
// only. No product is fused: all sets have the same bits.
#pragma once

#include "kernels/cpu/simd.h"

namespace lowtide::cpu::LT_ISA {

constexpr int kDoubles = LT_LANES / 2;
typedef double vd __attribute__((vector_size(4 * LT_LANES)));
typedef int64_t vl __attribute__((vector_size(4 * LT_LANES)));
typedef float half_vf __attribute__((vector_size(2 * LT_LANES)));
typedef double vd_unaligned __attribute__((vector_size(4 * LT_LANES), aligned(8), may_alias));
typedef int64_t vl_unaligned __attribute__((vector_size(4 * LT_LANES), aligned(8), may_alias));
typedef float half_vf_unaligned __attribute__((vector_size(2 * LT_LANES), aligned(4), may_alias));

LT_INLINE vd splat_double(double x) { return x - vd{}; }
LT_INLINE vd load_doubles(const double* p) { return *(const vd_unaligned*)p; }
LT_INLINE vd load_doubles(const float* p) { return __builtin_convertvector(*(const half_vf_unaligned*)p, vd); }
LT_INLINE vl load_longs(const int64_t* p) { return *(const vl_unaligned*)p; }
LT_INLINE void store_doubles(double* p, vd v) { *(vd_unaligned*)p = v; }
LT_INLINE void store_doubles(float* p, vd v) { *(half_vf_unaligned*)p = __builtin_convertvector(v, half_vf); }

// The count of a whole vector; a tail's is an int in [1, kDoubles).
struct FullDoubles {
  constexpr operator int() const { return kDoubles; }
};
LT_INLINE vd load_doubles(const double* p, FullDoubles) { return load_doubles(p); }
LT_INLINE vd load_doubles(const double* p, int count) {
  vd v = {};
  for (int i = 0; i < count; ++i) v[i] = p[i];
  return v;
}
LT_INLINE void store_doubles(double* p, vd v, FullDoubles) { store_doubles(p, v); }
LT_INLINE void store_doubles(double* p, vd v, int count) {
  for (int i = 0; i < count; ++i) p[i] = v[i];
}
// body(i, count) for i = 0, kDoubles, …: whole vectors, then the tail.
template <class Body>
LT_INLINE void for_doubles(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + kDoubles <= n; i += kDoubles) body(i, FullDoubles{});
  if (i < n) body(i, (int)(n - i));
}

// From the highest power down.
template <size_t count>
LT_INLINE vd polynomial(vd x, const double (&coefficients)[count]) {
  vd sum = splat_double(coefficients[0]);
  for (size_t i = 1; i < count; ++i) sum = sum * x + coefficients[i];
  return sum;
}

// exp(x) = (1 + rest) 2^n for x in [lowest, 710], which x is taken into; of NaN, rest is NaN.
struct ReducedExp {
  vd rest;
  vl n;
};
LT_INLINE ReducedExp reduced_exp(vd x, double lowest = -708.0) {
  constexpr double kToInteger = 6755399441055744.0;  // 1.5 2^52: the sum's last bits are those of the nearest integer
  const vd above = x < lowest ? splat_double(lowest) : x;
  const vd bounded = above > 710.0 ? splat_double(710.0) : above;
  const vd shifted = bounded * 1.4426950408889634 + kToInteger;
  const vd n = shifted - kToInteger;
  const vd r = (bounded - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
  constexpr double kTaylor[] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800,
                                1.0 / 362880,     1.0 / 40320,     1.0 / 5040,     1.0 / 720,
                                1.0 / 120,        1.0 / 24,        1.0 / 6,        0.5};
  return {polynomial(r, kTaylor) * (r * r) + r, (vl)shifted - (vl)splat_double(kToInteger)};  // |r| <= ln(2)/2
}
// n from -1022 to 1024, which is infinite.
LT_INLINE vd power_of_2(vl n) { return (vd)((n + 1023) << 52); }

// Within 2 ulp; 0 below -708, infinite above 709.4, of NaN NaN.
LT_INLINE vd exp_of_doubles(vd x) {
  const ReducedExp e = reduced_exp(x);
  const vd y = (e.rest + 1.0) * power_of_2(e.n);
  return x < -708.0 ? vd{} : y;
}

// Of all doubles, those whose exp is no normal number or nearly too large among them.
LT_INLINE vd exp_in_full(vd x) {
  const ReducedExp e = reduced_exp(x, -746.0);
  const vl half = e.n >> 1;
  return ((e.rest + 1.0) * power_of_2(half)) * power_of_2(e.n - half);
}

// exp(x) - 1 for |x| <= 700.
LT_INLINE vd expm1_of_doubles(vd x) {
  const ReducedExp e = reduced_exp(x);
  const vd scale = power_of_2(e.n);
  return e.rest * scale + (scale - 1.0);
}

LT_INLINE vd sigmoid_of_doubles(vd x) { return 1.0 / (exp_of_doubles(-x) + 1.0); }

LT_INLINE vd tanh_of_doubles(vd x) {
  constexpr int64_t kSign = INT64_MIN;
  const vd magnitude = (vd)((vl)x & ~kSign);
  const vd bounded = magnitude > 22.0 ? splat_double(22.0) : magnitude;  // whose tanh rounds to 1
  const vd e = expm1_of_doubles(bounded * 2.0);
  return (vd)((vl)(e / (e + 2.0)) | ((vl)x & kSign));
}

// log(1 + x) for x in [0, 1], of NaN NaN: twice the series of artanh(x / (2 + x)).
LT_INLINE vd log1p_to_1(vd x) {
  constexpr double kSeries[] = {2.0 / 35, 2.0 / 33, 2.0 / 31, 2.0 / 29, 2.0 / 27, 2.0 / 25,
                                2.0 / 23, 2.0 / 21, 2.0 / 19, 2.0 / 17, 2.0 / 15, 2.0 / 13,
                                2.0 / 11, 2.0 / 9,  2.0 / 7,  2.0 / 5,  2.0 / 3};
  const vd f = x / (x + 2.0), q = f * f;  // at most 1/9
  return (f * q) * polynomial(q, kSeries) + 2.0 * f;
}

// Sine and cosine of x = r + n pi / 2 for |x| <= kMostReduced: pi / 2 in parts of 33 bits, whose products with n are
// exact.
constexpr double kMostReduced = 1.5e6;
struct Angle {
  vd r;
  vl n;
};
LT_INLINE Angle reduced_angle(vd x) {
  constexpr double kToInteger = 6755399441055744.0;
  const vd shifted = x * 0.63661977236758134 + kToInteger;
  const vd n = shifted - kToInteger;
  const vd r = ((x - n * 1.57079632673412561417) - n * 6.07710050630396597660e-11) - n * 2.02226624879595063154e-21;
  return {r, (vl)shifted - (vl)splat_double(kToInteger)};
}
// Taylor's series, |r| <= pi / 4.
LT_INLINE vd sine_near_0(vd r) {
  constexpr double kTaylor[] = {1.0 / 355687428096000, -1.0 / 1307674368000, 1.0 / 6227020800, -1.0 / 39916800,
                                1.0 / 362880,          -1.0 / 5040,          1.0 / 120,        -1.0 / 6};
  const vd q = r * r;
  return r + (r * q) * polynomial(q, kTaylor);
}
LT_INLINE vd cosine_near_0(vd r) {
  constexpr double kTaylor[] = {-1.0 / 6402373705728000, 1.0 / 20922789888000, -1.0 / 87178291200, 1.0 / 479001600,
                                -1.0 / 3628800,          1.0 / 40320,          -1.0 / 720,         1.0 / 24};
  const vd q = r * r, half = q * 0.5, near = 1.0 - half;
  return near + (((1.0 - near) - half) + (q * q) * polynomial(q, kTaylor));
}
// The sine of x + quarters pi / 2.
LT_INLINE vd sine_of_doubles(vd x, int64_t quarters) {
  const Angle angle = reduced_angle(x);
  const vl turned = angle.n + quarters, is_odd = -(turned & 1);
  const vd y = is_odd ? cosine_near_0(angle.r) : sine_near_0(angle.r);
  return (vd)((vl)y ^ ((turned & 2) << 62));
}

// For x in [1, 4], of NaN NaN; within 2e-16 of the exact value.
LT_INLINE vd log_from_1_to_4(vd x) {
  constexpr double kRoot = 1.4142135623730951, kLog2 = 0.69314718055994531;
  const vl above = x > kRoot, far_above = x > 2 * kRoot;
  const vd m = far_above ? x * 0.25 : (above ? x * 0.5 : x);
  const vd n = far_above ? splat_double(2 * kLog2) : (above ? splat_double(kLog2) : vd{});
  const vd f = (m - 1.0) / (m + 1.0), q = f * f;  // |f| <= 0.172
  constexpr double kSeries[] = {2.0 / 19, 2.0 / 17, 2.0 / 15, 2.0 / 13, 2.0 / 11, 2.0 / 9, 2.0 / 7, 2.0 / 5, 2.0 / 3};
  const vd p = polynomial(q, kSeries);
  return n + (f * q * p + 2.0 * f);
}

}  // namespace lowtide::cpu::LT_ISA
