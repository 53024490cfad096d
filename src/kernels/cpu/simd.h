// Vectors of one instruction set (LT_ISA names it, LT_LANES is its number of floats), for files *_isa.cpp only.
// The compiler's vector types carry + - * / < == ?: & | ^ << >>; what they lack stands here.
// Everything is forced inline: see isa.h. Contraction is off (-ffp-contract=off), so fma is written where it is meant.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdint>

#define LT_INLINE static inline __attribute__((always_inline))
#define LT_INLINE_LAMBDA __attribute__((always_inline))

namespace lowtide::cpu::LT_ISA {

constexpr int kLanes = LT_LANES;
typedef float vf __attribute__((vector_size(4 * LT_LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LT_LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LT_LANES)));
typedef float vf_unaligned __attribute__((vector_size(4 * LT_LANES), aligned(4), may_alias));
typedef uint32_t vu_unaligned __attribute__((vector_size(4 * LT_LANES), aligned(4), may_alias));

// The count of a whole vector; a tail's count is an int in [1, kLanes).
struct Full {
  constexpr operator int() const { return kLanes; }
};

LT_INLINE vf splat(float x) { return x - vf{}; }
LT_INLINE vi splat_int(int32_t x) { return x - vi{}; }
LT_INLINE vu splat_word(uint32_t x) { return x - vu{}; }
LT_INLINE vi iota() {
  vi v;
  for (int i = 0; i < kLanes; ++i) v[i] = i;
  return v;
}
LT_INLINE vi as_int(vf x) { return (vi)x; }
LT_INLINE vf as_float(vi x) { return (vf)x; }
LT_INLINE vf abs(vf x) { return as_float(as_int(x) & 0x7fffffff); }
LT_INLINE vf copy_sign(vf magnitude, vf sign) {
  return as_float((as_int(magnitude) & 0x7fffffff) | (as_int(sign) & INT32_MIN));
}
LT_INLINE vf to_float(vi x) { return __builtin_convertvector(x, vf); }
LT_INLINE vi to_int(vf x) { return __builtin_convertvector(x, vi); }  // towards zero

LT_INLINE vf load(const float* p) { return *(const vf_unaligned*)p; }
LT_INLINE vf load(const float* p, Full) { return load(p); }
LT_INLINE void store(float* p, vf v) { *(vf_unaligned*)p = v; }
LT_INLINE void store(float* p, vf v, Full) { store(p, v); }
LT_INLINE void store_words(uint32_t* p, vu v) { *(vu_unaligned*)p = v; }

// vmin, vmax: the second argument if either is NaN. round_even: to the nearest integer, for |x| < 2^22. any_lane: of
// what a comparison gives.
#if defined(__AVX512F__) && LT_LANES == 16
LT_INLINE __mmask16 tail_mask(int count) { return (__mmask16)((1u << count) - 1); }
LT_INLINE vf load(const float* p, int count) { return _mm512_maskz_loadu_ps(tail_mask(count), p); }
LT_INLINE void store(float* p, vf v, int count) { _mm512_mask_storeu_ps(p, tail_mask(count), v); }
LT_INLINE vf fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
LT_INLINE vf vmin(vf a, vf b) { return _mm512_min_ps(a, b); }
LT_INLINE vf vmax(vf a, vf b) { return _mm512_max_ps(a, b); }
LT_INLINE vf vsqrt(vf a) { return _mm512_sqrt_ps(a); }
LT_INLINE vf round_even(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
LT_INLINE bool any_lane(vi condition) { return _mm512_movepi32_mask((__m512i)condition) != 0; }
LT_INLINE void mul_wide(vu a, uint32_t factor, vu* high, vu* low) {
  const __m512i f = _mm512_set1_epi32((int)factor), x = (__m512i)a;
  const __m512i even = _mm512_mul_epu32(x, f), odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), f);
  *high = (vu)_mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
  *low = (vu)_mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
}
#elif defined(__AVX2__) && LT_LANES == 8
LT_INLINE __m256i tail_mask(int count) { return (__m256i)(iota() < count); }
LT_INLINE vf load(const float* p, int count) { return _mm256_maskload_ps(p, tail_mask(count)); }
LT_INLINE void store(float* p, vf v, int count) { _mm256_maskstore_ps(p, tail_mask(count), v); }
LT_INLINE vf fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
LT_INLINE vf vmin(vf a, vf b) { return _mm256_min_ps(a, b); }
LT_INLINE vf vmax(vf a, vf b) { return _mm256_max_ps(a, b); }
LT_INLINE vf vsqrt(vf a) { return _mm256_sqrt_ps(a); }
LT_INLINE vf round_even(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
LT_INLINE bool any_lane(vi condition) { return _mm256_movemask_ps((__m256)condition) != 0; }
LT_INLINE void mul_wide(vu a, uint32_t factor, vu* high, vu* low) {
  const __m256i f = _mm256_set1_epi32((int)factor), x = (__m256i)a;
  const __m256i even = _mm256_mul_epu32(x, f), odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), f);
  *high = (vu)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
  *low = (vu)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
}
#else
LT_INLINE vf load(const float* p, int count) {
  vf v = {};
  for (int i = 0; i < count; ++i) v[i] = p[i];
  return v;
}
LT_INLINE void store(float* p, vf v, int count) {
  for (int i = 0; i < count; ++i) p[i] = v[i];
}
LT_INLINE vf fma(vf a, vf b, vf c) { return a * b + c; }
LT_INLINE vf vmin(vf a, vf b) { return a < b ? a : b; }
LT_INLINE vf vmax(vf a, vf b) { return a > b ? a : b; }
LT_INLINE vf vsqrt(vf a) {
  for (int i = 0; i < kLanes; ++i) a[i] = __builtin_sqrtf(a[i]);
  return a;
}
LT_INLINE vf round_even(vf a) { return (a + 12582912.0f) - 12582912.0f; }
LT_INLINE bool any_lane(vi condition) {
  int32_t any = 0;
  for (int i = 0; i < kLanes; ++i) any |= condition[i];
  return any != 0;
}
LT_INLINE void mul_wide(vu a, uint32_t factor, vu* high, vu* low) {
  for (int i = 0; i < kLanes; ++i) {
    const uint64_t product = (uint64_t)a[i] * factor;
    (*high)[i] = (uint32_t)(product >> 32);
    (*low)[i] = (uint32_t)product;
  }
}
#endif

// Lanes at and after `count` become `rest`.
LT_INLINE vf keep_lanes(vf v, Full, float) { return v; }
LT_INLINE vf keep_lanes(vf v, int count, float rest) { return iota() < count ? v : splat(rest); }

LT_INLINE float min_of(float a, float b) { return a < b ? a : b; }
LT_INLINE int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
LT_INLINE int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
LT_INLINE int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Sum and maximum of the lanes, halves folded onto each other.
LT_INLINE float lane_sum(vf v) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) v[i] = v[i] + v[i + half];
  }
  return v[0];
}
LT_INLINE float lane_max(vf v) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) v[i] = v[i] > v[i + half] ? v[i] : v[i + half];
  }
  return v[0];
}

// body(i, count) for i = 0, kLanes, …: whole vectors with Full, then the tail with its int count.
template <class Body>
LT_INLINE void for_vectors(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, Full{});
  if (i < n) body(i, static_cast<int>(n - i));
}

// The canonical sum over a row of n: term(i, count) goes to accumulator i / kLanes % 4, lane i % kLanes; the four
// accumulators are added pairwise, then the lanes folded. Terms of absent lanes must be 0.
template <class Term>
LT_INLINE float row_sum(int64_t n, Term term) {
  vf sum[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int k = 0; k < 4; ++k) sum[k] += term(i + k * kLanes, Full{});
  }
  for (int k = 0; i < n; i += kLanes, ++k) {
    if (i + kLanes <= n) {
      sum[k] += term(i, Full{});
    } else {
      sum[k] += term(i, static_cast<int>(n - i));
    }
  }
  return lane_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// The largest of sign * x, x a row of n; NaN is passed over.
LT_INLINE float row_max(const float* x, int64_t n, float sign) {
  const vf s = splat(sign);
  vf m[4] = {splat(-__builtin_inff()), splat(-__builtin_inff()), splat(-__builtin_inff()), splat(-__builtin_inff())};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int k = 0; k < 4; ++k) m[k] = vmax(load(x + i + k * kLanes) * s, m[k]);
  }
  for (; i + kLanes <= n; i += kLanes) m[0] = vmax(load(x + i) * s, m[0]);
  if (i < n) {
    const int count = static_cast<int>(n - i);
    m[0] = vmax(keep_lanes(load(x + i, count) * s, count, -__builtin_inff()), m[0]);
  }
  return lane_max(vmax(vmax(m[0], m[1]), vmax(m[2], m[3])));
}

}  // namespace lowtide::cpu::LT_ISA
