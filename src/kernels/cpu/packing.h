// Integers in fewer bits, and back: PackBits and UnpackBits of ops.def on dense memory.
#pragma once

#include <cstdint>

namespace lowtide::cpu {

// packed = the n elements of `element_bytes` (1, 2, 4, 8) at src, each minus `low` modulo 2^bits; bits is 1, 2, 4, 8,
// 16 or 32 and at most 8 * element_bytes. Bits past the last element are 0.
void pack_bits(const void* src, int64_t n, int64_t element_bytes, int64_t bits, int64_t low, void* packed);
// dst = low + what pack_bits stored, modulo the width of an element.
void unpack_bits(const void* packed, int64_t n, int64_t element_bytes, int64_t bits, int64_t low, void* dst);

}  // namespace lowtide::cpu
