// The random numbers of every kernel: Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC
// 2011), counted by element, so any part of a tensor can be drawn alone and again, bit for bit, on any thread and any
// ISA.
//
//   word(key, stream, e):  group = e / 64, lane = e % 16, part = e % 64 / 16
//     counter = {low32(c), high32(c), low32(stream), high32(stream)} with c = group * 16 + lane
//     key     = {low32(key), high32(key)}
//     word    = Philox4x32-10(counter, key)[part]
// One call of Philox serves the four elements e, e+16, e+32, e+48 of a group of 64: sixteen lanes of a vector draw 64
// neighbours without a shuffle.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace lowtide {

inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, uint64_t key) {
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

inline uint32_t random_word(uint64_t key, uint64_t stream, uint64_t index) {
  const uint64_t c = index / 64 * 16 + index % 16;
  return philox4x32({static_cast<uint32_t>(c), static_cast<uint32_t>(c >> 32), static_cast<uint32_t>(stream),
                     static_cast<uint32_t>(stream >> 32)},
                    key)[index % 64 / 16];
}

// An element is kept when its word is at least the threshold: with probability 1 - p, p rounded to 2^-32.
// p = 0 keeps everything, p = 1 nothing.
inline uint64_t dropout_threshold(double p) {
  if (!(p > 0)) return 0;
  if (p >= 1) return uint64_t{1} << 32;
  return static_cast<uint64_t>(p * 4294967296.0 + 0.5);
}

inline bool dropout_keep(uint64_t key, uint64_t stream, uint64_t index, uint64_t threshold) {
  return random_word(key, stream, index) >= threshold;
}

// What a kept element is multiplied by; 0 for p = 1, where nothing is kept.
inline float dropout_scale(double p) { return p >= 1 ? 0.0f : static_cast<float>(1.0 / (1.0 - p)); }

// In [0, 1), a multiple of 2^-24.
inline float random_uniform(uint64_t key, uint64_t stream, uint64_t index) {
  return static_cast<float>(random_word(key, stream, index) >> 8) * 0x1p-24f;
}

// Standard normal by Box and Muller's transform: elements e and e + 16 of a group's first or second half (e % 32 < 16)
// share the radius of word(e) and the angle of word(e + 16); e takes the cosine, e + 16 the sine.
inline double normal_of_words(uint32_t radius_word, uint32_t angle_word, bool sine) {
  const double radius = std::sqrt(-2 * std::log((radius_word + 0.5) * 0x1p-32));
  const double angle = 2 * std::numbers::pi * (angle_word * 0x1p-32);
  return radius * (sine ? std::sin(angle) : std::cos(angle));
}
inline double random_normal(uint64_t key, uint64_t stream, uint64_t index) {
  const uint64_t first = index & ~uint64_t{16};
  return normal_of_words(random_word(key, stream, first), random_word(key, stream, first + 16), index & 16);
}

}  // namespace lowtide
