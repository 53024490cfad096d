// Random kernels by kernels/philox.h. Element i of the call is element i of the stream.
#pragma once

#include <cstdint>

namespace lowtide::cpu {

// Of one dropout: word >= threshold keeps. scale = 1 / (1 - p), and 0 for p = 1, where nothing may be kept.
struct DropoutRule {
  uint64_t key = 0;
  uint64_t stream = 0;
  uint32_t threshold = 0;
  float scale = 1;
};
DropoutRule dropout_rule(double p, uint64_t key, uint64_t stream);

// y[i] = keep(i) ? scale x[i] : 0. The gradient is the same function of dy. y may be x.
void dropout(const DropoutRule& rule, const float* x, float* y, int64_t n);
// keep[i] = keep(i)
void dropout_mask(const DropoutRule& rule, uint8_t* keep, int64_t n);

// low + (high - low) u, u = random_uniform of philox.h
void random_uniform(uint64_t key, uint64_t stream, float low, float high, float* y, int64_t n);
// mean + deviation z, z = random_normal of philox.h
void random_normal(uint64_t key, uint64_t stream, float mean, float deviation, float* y, int64_t n);

}  // namespace lowtide::cpu
