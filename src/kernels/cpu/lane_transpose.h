// Transposes a kLanes x kLanes block held in vectors. For files *_isa.cpp only.
#pragma once

#include <utility>

#include "kernels/cpu/simd.h"

namespace lowtide::cpu::LT_ISA {

// Swaps the off-diagonal halves of 2 half x 2 half blocks.
template <int half, int... lane>
LT_INLINE void exchange(vf& a, vf& b, std::integer_sequence<int, lane...>) {
  const vf low = __builtin_shufflevector(a, b, ((lane & half) ? kLanes + lane - half : lane)...);
  b = __builtin_shufflevector(a, b, ((lane & half) ? kLanes + lane : lane + half)...);
  a = low;
}

template <int half = 1>
LT_INLINE void transpose(vf* rows) {
  if constexpr (half < kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (!(i & half)) exchange<half>(rows[i], rows[i + half], std::make_integer_sequence<int, kLanes>());
    }
    transpose<half * 2>(rows);
  }
}

}  // namespace lowtide::cpu::LT_ISA
