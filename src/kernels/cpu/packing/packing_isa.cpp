#include "kernels/cpu/packing/packing_table.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lowtide::cpu::LT_ISA {
namespace {

typedef unsigned char byte;

// Elements narrower than a byte share one, the first in the lowest bits.
template <class T, int kBits>
void pack_small(const T* x, byte* p, int64_t n, T low) {
  constexpr int kPerByte = 8 / kBits;
  constexpr T kMask = (T)((1 << kBits) - 1);
  const int64_t whole = n / kPerByte;
  for (int64_t i = 0; i < whole; ++i) {
    unsigned sum = 0;
    for (int j = 0; j < kPerByte; ++j) sum |= (unsigned)((T)(x[i * kPerByte + j] - low) & kMask) << (j * kBits);
    p[i] = (byte)sum;
  }
  if (whole * kPerByte == n) return;
  unsigned sum = 0;
  for (int64_t i = whole * kPerByte; i < n; ++i)
    sum |= (unsigned)((T)(x[i] - low) & kMask) << ((i - whole * kPerByte) * kBits);
  p[whole] = (byte)sum;
}

template <class T, int kBits>
void unpack_small(const byte* p, T* y, int64_t n, T low) {
  constexpr int kPerByte = 8 / kBits;
  constexpr T kMask = (T)((1 << kBits) - 1);
  const int64_t whole = n / kPerByte;
  for (int64_t i = 0; i < whole; ++i)
    for (int j = 0; j < kPerByte; ++j) y[i * kPerByte + j] = (T)(low + ((p[i] >> (j * kBits)) & kMask));
  for (int64_t i = whole * kPerByte; i < n; ++i)
    y[i] = (T)(low + ((p[whole] >> ((i - whole * kPerByte) * kBits)) & kMask));
}

template <class T, class Stored>
void narrow(const T* x, Stored* p, int64_t n, T low) {
  for (int64_t i = 0; i < n; ++i) p[i] = (Stored)(x[i] - low);
}
template <class T, class Stored>
void widen(const Stored* p, T* y, int64_t n, T low) {
  for (int64_t i = 0; i < n; ++i) y[i] = (T)(low + p[i]);
}

template <class T, int kBits>
void pack(const void* from, void* to, int64_t n, int64_t low) {
  const T* x = (const T*)from;
  if constexpr (kBits < 8) {
    pack_small<T, kBits>(x, (byte*)to, n, (T)low);
  } else if constexpr (kBits == 8) {
    narrow(x, (uint8_t*)to, n, (T)low);
  } else if constexpr (kBits == 16) {
    narrow(x, (uint16_t*)to, n, (T)low);
  } else {
    narrow(x, (uint32_t*)to, n, (T)low);
  }
}

template <class T, int kBits>
void unpack(const void* from, void* to, int64_t n, int64_t low) {
  T* y = (T*)to;
  if constexpr (kBits < 8) {
    unpack_small<T, kBits>((const byte*)from, y, n, (T)low);
  } else if constexpr (kBits == 8) {
    widen((const uint8_t*)from, y, n, (T)low);
  } else if constexpr (kBits == 16) {
    widen((const uint16_t*)from, y, n, (T)low);
  } else {
    widen((const uint32_t*)from, y, n, (T)low);
  }
}

// Masks: bytes to bits. A byte's lowest bit is what counts, whatever it holds.
void pack_flags(const void* from, void* to, int64_t n, int64_t low) {
  const auto* x = (const byte*)from;
  auto* p = (byte*)to;
  int64_t i = 0;
#if defined(__AVX512BW__)
  const __m512i first = _mm512_set1_epi8(1), offset = _mm512_set1_epi8((char)low);
  for (; i + 64 <= n; i += 64) {
    const __m512i values = _mm512_sub_epi8(_mm512_loadu_si512(x + i), offset);
    const uint64_t mask = _mm512_test_epi8_mask(values, first);
    __builtin_memcpy(p + i / 8, &mask, 8);
  }
#elif defined(__AVX2__)
  const __m256i offset = _mm256_set1_epi8((char)low);
  for (; i + 32 <= n; i += 32) {
    const __m256i values = _mm256_sub_epi8(_mm256_loadu_si256((const __m256i*)(x + i)), offset);
    // The lowest bit of each byte becomes its highest: what is shifted over the border is not looked at.
    const uint32_t mask = (uint32_t)_mm256_movemask_epi8(_mm256_slli_epi16(values, 7));
    __builtin_memcpy(p + i / 8, &mask, 4);
  }
#endif
  pack_small<uint8_t, 1>(x + i, p + i / 8, n - i, (uint8_t)low);
}

void unpack_flags(const void* from, void* to, int64_t n, int64_t low) {
  const auto* p = (const byte*)from;
  auto* y = (byte*)to;
  int64_t i = 0;
#if defined(__AVX512BW__)
  const __m512i zero = _mm512_set1_epi8((char)low), one = _mm512_set1_epi8((char)(low + 1));
  for (; i + 64 <= n; i += 64) {
    uint64_t mask;
    __builtin_memcpy(&mask, p + i / 8, 8);
    _mm512_storeu_si512(y + i, _mm512_mask_blend_epi8(mask, zero, one));
  }
#endif
  unpack_small<uint8_t, 1>(p + i / 8, y + i, n - i, (uint8_t)low);
}

}  // namespace

constinit const PackingTable packing_table = {
    {{pack_flags, pack<uint8_t, 2>, pack<uint8_t, 4>, pack<uint8_t, 8>, nullptr, nullptr},
     {pack<uint16_t, 1>, pack<uint16_t, 2>, pack<uint16_t, 4>, pack<uint16_t, 8>, pack<uint16_t, 16>, nullptr},
     {pack<uint32_t, 1>, pack<uint32_t, 2>, pack<uint32_t, 4>, pack<uint32_t, 8>, pack<uint32_t, 16>,
      pack<uint32_t, 32>},
     {pack<uint64_t, 1>, pack<uint64_t, 2>, pack<uint64_t, 4>, pack<uint64_t, 8>, pack<uint64_t, 16>,
      pack<uint64_t, 32>}},
    {{unpack_flags, unpack<uint8_t, 2>, unpack<uint8_t, 4>, unpack<uint8_t, 8>, nullptr, nullptr},
     {unpack<uint16_t, 1>, unpack<uint16_t, 2>, unpack<uint16_t, 4>, unpack<uint16_t, 8>, unpack<uint16_t, 16>,
      nullptr},
     {unpack<uint32_t, 1>, unpack<uint32_t, 2>, unpack<uint32_t, 4>, unpack<uint32_t, 8>, unpack<uint32_t, 16>,
      unpack<uint32_t, 32>},
     {unpack<uint64_t, 1>, unpack<uint64_t, 2>, unpack<uint64_t, 4>, unpack<uint64_t, 8>, unpack<uint64_t, 16>,
      unpack<uint64_t, 32>}}};

}  // namespace lowtide::cpu::LT_ISA
