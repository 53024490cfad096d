// Vectors of bf16 (brain) and f16 numbers in memory, as floats. For files *_isa.cpp only.
#pragma once

#include "kernels/cpu/simd.h"

namespace lowtide::cpu::LT_ISA {

typedef uint16_t half_bits;
typedef half_bits vh __attribute__((vector_size(2 * LT_LANES)));
typedef half_bits vh_unaligned __attribute__((vector_size(2 * LT_LANES), aligned(2), may_alias));

LT_INLINE vh load_bits(const half_bits* p, Full) { return *(const vh_unaligned*)p; }
LT_INLINE void store_bits(half_bits* p, vh v, Full) { *(vh_unaligned*)p = v; }

#if defined(__AVX512F__) && LT_LANES == 16
LT_INLINE vh load_bits(const half_bits* p, int count) { return (vh)_mm256_maskz_loadu_epi16(tail_mask(count), p); }
LT_INLINE void store_bits(half_bits* p, vh v, int count) { _mm256_mask_storeu_epi16(p, tail_mask(count), (__m256i)v); }
// One instruction each, where the compiler makes several of __builtin_convertvector.
LT_INLINE vu to_words(vh bits) { return (vu)_mm512_cvtepu16_epi32((__m256i)bits); }
LT_INLINE vh high_halves(vu words) { return (vh)_mm512_cvtepi32_epi16((__m512i)(words >> 16)); }
#else
LT_INLINE vh load_bits(const half_bits* p, int count) {
  vh v = {};
  for (int i = 0; i < count; ++i) v[i] = p[i];
  return v;
}
LT_INLINE void store_bits(half_bits* p, vh v, int count) {
  for (int i = 0; i < count; ++i) p[i] = v[i];
}
LT_INLINE vu to_words(vh bits) { return __builtin_convertvector(bits, vu); }
LT_INLINE vh high_halves(vu words) { return __builtin_convertvector(words >> 16, vh); }
#endif

LT_INLINE vf widen_bf16(vh bits) { return (vf)(to_words(bits) << 16); }
// To nearest even, as in PyTorch.
LT_INLINE vu rounded_bf16(vf x) {  // in the high halves
  const vu bits = (vu)x;
  return x == x ? bits + 0x7fffu + ((bits >> 16) & 1u) : splat_word(0x7fc00000u);
}
LT_INLINE vh narrow_bf16(vf x) { return high_halves(rounded_bf16(x)); }

#if defined(__AVX512F__) && LT_LANES == 16
LT_INLINE vf widen_f16(vh bits) { return _mm512_cvtph_ps((__m256i)bits); }
LT_INLINE vh narrow_f16(vf x) { return (vh)_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
#elif defined(__F16C__) && LT_LANES == 8
LT_INLINE vf widen_f16(vh bits) { return _mm256_cvtph_ps((__m128i)bits); }
LT_INLINE vh narrow_f16(vf x) { return (vh)_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
#else
LT_INLINE vf widen_f16(vh bits) {
  vf x;
  for (int i = 0; i < kLanes; ++i) {
    _Float16 value;
    const half_bits each = bits[i];
    __builtin_memcpy(&value, &each, sizeof value);
    x[i] = (float)value;
  }
  return x;
}
LT_INLINE vh narrow_f16(vf x) {
  vh bits;
  for (int i = 0; i < kLanes; ++i) {
    const _Float16 value = (_Float16)x[i];
    half_bits each;
    __builtin_memcpy(&each, &value, sizeof each);
    bits[i] = each;
  }
  return bits;
}
#endif

template <bool brain, class Count>
LT_INLINE vf load_half(const half_bits* p, Count count) {
  return brain ? widen_bf16(load_bits(p, count)) : widen_f16(load_bits(p, count));
}
template <bool brain, class Count>
LT_INLINE void store_half(half_bits* p, vf x, Count count) {
  store_bits(p, brain ? narrow_bf16(x) : narrow_f16(x), count);
}

// What is stored as f32, bf16 or f16, for loops that are written once.
struct Floats {
  using Number = float;
  template <class Count>
  static vf load(const Number* p, Count count) {
    return LT_ISA::load(p, count);
  }
  template <class Count>
  static void store(Number* p, vf x, Count count) {
    LT_ISA::store(p, x, count);
  }
  static vf rounded(vf x) { return x; }
};
template <bool brain>
struct Halves {
  using Number = half_bits;
  template <class Count>
  static vf load(const Number* p, Count count) {
    return load_half<brain>(p, count);
  }
  template <class Count>
  static void store(Number* p, vf x, Count count) {
    store_half<brain>(p, x, count);
  }
  static vf rounded(vf x) { return brain ? (vf)(rounded_bf16(x) & 0xffff0000u) : widen_f16(narrow_f16(x)); }
};

}  // namespace lowtide::cpu::LT_ISA
