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

// From the highest power down.
template <size_t count>
LT_INLINE vd polynomial(vd x, const double (&coefficients)[count]) {
  vd sum = splat_double(coefficients[0]);
  for (size_t i = 1; i < count; ++i) sum = sum * x + coefficients[i];
  return sum;
}

// Within 2 ulp; 0 below -708, infinite above 709.4, of NaN NaN.
LT_INLINE vd exp_of_doubles(vd x) {
  constexpr double kToInteger = 6755399441055744.0;  // 1.5 2^52: the sum's last bits are those of the nearest integer
  const vd above = x < -708.0 ? splat_double(-708.0) : x;
  const vd bounded = above > 710.0 ? splat_double(710.0) : above;
  const vd shifted = bounded * 1.4426950408889634 + kToInteger;
  const vd n = shifted - kToInteger;
  const vd r = (bounded - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
  constexpr double kTaylor[] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800,
                                1.0 / 362880,     1.0 / 40320,     1.0 / 5040,     1.0 / 720,
                                1.0 / 120,        1.0 / 24,        1.0 / 6,        0.5};
  const vd p = polynomial(r, kTaylor);  // |r| is at most ln(2)/2
  const vd mantissa = (p * (r * r) + r) + 1.0;
  const vd y = mantissa * (vd)(((vl)shifted + 1023) << 52);
  return x < -708.0 ? vd{} : y;
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
