#include "kernels/cpu/random.h"

#include <algorithm>

#include "base/parallel.h"
#include "kernels/cpu/random_table.h"
#include "kernels/philox.h"

namespace lowtide::cpu {
namespace {

// body(first, n): first is a multiple of 64.
template <class Body>
void for_groups(int64_t n, int64_t grain, Body body) {
  parallel_for((n + 63) / 64, grain / 64,
               [&](int64_t begin, int64_t end) { body(begin * 64, std::min(n, end * 64) - begin * 64); });
}

// Words of 1,024 elements at a time: body(i, words, count).
template <class Body>
void for_words(uint64_t key, uint64_t stream, int64_t n, int64_t grain, Body body) {
  for_groups(n, grain, [&](int64_t first, int64_t count) {
    uint32_t words[1024];
    for (int64_t i = first; i < first + count; i += 1024) {
      // Whole groups, as normal numbers need both words of a pair.
      const int64_t each = std::min<int64_t>(1024, first + count - i);
      random_table().words(key, stream, i, words, (each + 63) / 64 * 64);
      body(i, words, each);
    }
  });
}

}  // namespace

DropoutRule dropout_rule(double p, uint64_t key, uint64_t stream) {
  return {key, stream, static_cast<uint32_t>(std::min<uint64_t>(dropout_threshold(p), 0xffffffffu)), dropout_scale(p)};
}

void dropout(const DropoutRule& rule, const float* x, float* y, int64_t n) {
  for_groups(n, 1 << 14,
             [&](int64_t first, int64_t count) { random_table().dropout(rule, first, x + first, y + first, count); });
}

void dropout_mask(const DropoutRule& rule, uint8_t* keep, int64_t n) {
  for_words(rule.key, rule.stream, n, 1 << 14, [&](int64_t at, const uint32_t* words, int64_t count) {
    for (int64_t i = 0; i < count; ++i) keep[at + i] = words[i] >= rule.threshold && rule.scale != 0;
  });
}

void random_uniform(uint64_t key, uint64_t stream, float low, float high, float* y, int64_t n) {
  for_words(key, stream, n, 1 << 14, [&](int64_t at, const uint32_t* words, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      y[at + i] = low + (high - low) * (static_cast<float>(words[i] >> 8) * 0x1p-24f);
    }
  });
}

void random_normal(uint64_t key, uint64_t stream, float mean, float deviation, float* y, int64_t n) {
  for_words(key, stream, n, 1 << 11, [&](int64_t at, const uint32_t* words, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t even = i & ~int64_t{16};
      y[at + i] = static_cast<float>(mean + deviation * normal_of_words(words[even], words[even + 16], i & 16));
    }
  });
}

}  // namespace lowtide::cpu
