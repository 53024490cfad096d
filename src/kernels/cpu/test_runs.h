// For tests: every kernel is run on every instruction set of the machine and under several ways of cutting the work,
// which must agree bit for bit.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "base/parallel.h"
#include "kernels/cpu/isa.h"

namespace lowtide::cpu {

// Chunks of one grain, last first.
inline void small_chunks_backwards(int64_t begin, int64_t end, int64_t grain, ParallelBody body, void* context) {
  for (int64_t b = begin + (end - begin - 1) / grain * grain; b >= begin; b -= grain) {
    body(b, b + grain < end ? b + grain : end, context);
  }
}

// Three uneven chunks.
inline void three_chunks(int64_t begin, int64_t end, int64_t, ParallelBody body, void* context) {
  const int64_t n = end - begin, first = begin + n / 5, second = begin + n * 3 / 4;
  if (second < end) body(second, end, context);
  if (begin < first) body(begin, first, context);
  if (first < second) body(first, second, context);
}

// compute() returns the outputs; check(outputs) compares them with an oracle, once per instruction set.
template <class Compute, class Check>
void for_every_run(Compute compute, Check check) {
  for (Isa each : runnable_isas()) {
    SCOPED_TRACE(testing::Message() << "isa " << static_cast<int>(each));
    limit_isa(each);
    set_parallel_for(nullptr, 1);
    const auto serial = compute();
    check(serial);
    for (ParallelFor split : {small_chunks_backwards, three_chunks}) {
      set_parallel_for(split, 3);
      const auto again = compute();
      ASSERT_EQ(again.size(), serial.size());
      EXPECT_EQ(std::memcmp(again.data(), serial.data(), serial.size() * sizeof(serial[0])), 0)
          << "cutting the work differently changed bits";
    }
    set_parallel_for(nullptr, 1);
  }
  limit_isa(kHighestIsa);
}

inline std::vector<float> random_floats(int64_t n, uint32_t seed, float scale = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(n);
  for (float& value : values) value = normal(generator);
  return values;
}

// |found - wanted| <= absolute + relative * |wanted|, with infinities and NaN equal to themselves.
template <class Wanted>
void expect_close(const float* found, int64_t n, Wanted wanted, double relative, double absolute) {
  for (int64_t i = 0; i < n; ++i) {
    const double want = wanted(i), have = found[i];
    if (have == want || (have != have && want != want)) continue;
    ASSERT_LE(std::abs(have - want), absolute + relative * std::abs(want))
        << "element " << i << ": " << have << " for " << want;
  }
}

}  // namespace lowtide::cpu
