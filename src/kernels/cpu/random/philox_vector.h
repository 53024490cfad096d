// kernels/philox.h on vectors, with the same bits. For files *_isa.cpp only.
#pragma once

#include "kernels/cpu/random/random_table.h"
#include "kernels/cpu/simd.h"

namespace lowtide::cpu::LT_ISA {

// emit(offset, words) for the 64 words of elements [64 group, 64 group + 64): `words` belong to offset, offset + 1, ….
template <class Emit>
LT_INLINE void philox_group(uint64_t group, uint64_t key, uint64_t stream, Emit emit) {
  for (int part = 0; part < 16; part += kLanes) {
    const uint64_t c = group * 16 + part;
    vu c0 = (vu)iota() + (uint32_t)c, c1 = splat_word((uint32_t)(c >> 32)), c2 = splat_word((uint32_t)stream),
       c3 = splat_word((uint32_t)(stream >> 32));
    uint32_t key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      vu high0, low0, high1, low1;
      mul_wide(c0, 0xD2511F53u, &high0, &low0);
      mul_wide(c2, 0xCD9E8D57u, &high1, &low1);
      c0 = high1 ^ c1 ^ key0;
      c1 = low1;
      c2 = high0 ^ c3 ^ key1;
      c3 = low0;
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    emit(part, c0);
    emit(16 + part, c1);
    emit(32 + part, c2);
    emit(48 + part, c3);
  }
}

LT_INLINE vf dropout_factor(vu words, const DropoutRule& rule) {
  return words >= splat_word(rule.threshold) ? splat(rule.scale) : vf{};
}

// Factors (0 or scale) of elements [first, first + n) into `room` of at least n + 126 floats; returns where the first
// is.
LT_INLINE const float* dropout_factors(const DropoutRule& rule, uint64_t first, int64_t n, float* room) {
  const uint64_t group = first / 64;
  const int64_t skipped = (int64_t)(first % 64);
  for (int64_t i = 0; i < skipped + n; i += 64) {
    philox_group(group + i / 64, rule.key, rule.stream,
                 [&](int offset, vu words) LT_INLINE_LAMBDA { store(room + i + offset, dropout_factor(words, rule)); });
  }
  return room + skipped;
}

}  // namespace lowtide::cpu::LT_ISA
