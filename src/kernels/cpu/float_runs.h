// Runs of f32, bf16 and f16 tensors as floats: in place where they lie side by side, else through a buffer.
#pragma once

#include <algorithm>

#include "base/half.h"
#include "kernels/cpu/copy/copy_table.h"
#include "kernels/cpu/stored.h"
#include "kernels/kernel.h"

namespace lowtide::cpu {

constexpr int64_t kRun = 2048;

// Of f32, bf16 and f16 alone.
inline Stored stored_as(DType dtype) {
  return dtype == DType::kF32 ? kStoredF32 : dtype == DType::kBF16 ? kStoredBF16 : kStoredF16;
}

inline void* address(const TensorRef& tensor, int64_t offset) {
  return static_cast<char*>(tensor.data) + offset * size_bytes(tensor.dtype);
}

// n floats of a tensor: in place where they lie side by side, else gathered (and widened) into `buffer`.
inline const float* read(const TensorRef& tensor, int64_t offset, int64_t step, int64_t n, float* buffer) {
  if (tensor.dtype == DType::kF32) {
    const float* data = tensor.as<float>() + offset;
    if (step == 1 || n == 1) return data;
    for (int64_t i = 0; i < n; ++i) buffer[i] = data[i * step];
    return buffer;
  }
  const bool brain = tensor.dtype == DType::kBF16;
  if (step == 1) {
    const uint16_t* data = tensor.as<uint16_t>() + offset;
    const auto& table = copy_table();
    (brain ? table.bf16_to_f32 : table.f16_to_f32)(data, buffer, n);
  } else if (brain) {
    const BFloat16* data = tensor.as<BFloat16>() + offset;
    for (int64_t i = 0; i < n; ++i) buffer[i] = data[i * step];
  } else {
    const Float16* data = tensor.as<Float16>() + offset;
    for (int64_t i = 0; i < n; ++i) buffer[i] = data[i * step];
  }
  return buffer;
}

// Rounds n <= kRun floats as a tensor of `dtype` stores them.
inline void round_run(DType dtype, float* values, int64_t n) {
  if (dtype == DType::kF32) return;
  uint16_t stored[kRun];
  const auto& table = copy_table();
  const bool brain = dtype == DType::kBF16;
  (brain ? table.f32_to_bf16 : table.f32_to_f16)(values, stored, n);
  (brain ? table.bf16_to_f32 : table.f16_to_f32)(stored, values, n);
}

// n <= kRun floats as a kernel that computes in `computes` takes them.
inline const float* read_as(DType computes, const TensorRef& tensor, int64_t offset, int64_t step, int64_t n,
                            float* buffer) {
  const float* data = read(tensor, offset, step, n, buffer);
  if (computes == DType::kF32 || tensor.dtype != DType::kF32) return data;
  if (data != buffer) std::copy(data, data + n, buffer);
  round_run(computes, buffer, n);
  return buffer;
}

// Where a run of y may be computed: y itself, or a buffer for `write` to take from.
inline float* target(const TensorRef& y, int64_t offset, int64_t step, int64_t n, float* buffer) {
  return y.dtype == DType::kF32 && (step == 1 || n == 1) ? y.as<float>() + offset : buffer;
}

inline void write(const TensorRef& y, int64_t offset, int64_t step, int64_t n, const float* from) {
  if (y.dtype == DType::kF32) {
    float* data = y.as<float>() + offset;
    if (data == from) return;
    for (int64_t i = 0; i < n; ++i) data[i * step] = from[i];
  } else if (y.dtype == DType::kBF16) {
    BFloat16* data = y.as<BFloat16>() + offset;
    if (step == 1) return copy_table().f32_to_bf16(from, data, n);
    for (int64_t i = 0; i < n; ++i) data[i * step] = from[i];
  } else {
    Float16* data = y.as<Float16>() + offset;
    if (step == 1) return copy_table().f32_to_f16(from, data, n);
    for (int64_t i = 0; i < n; ++i) data[i * step] = from[i];
  }
}

// Of two operands: 0 both advance, 1 the left one only, 2 the right one only.
template <class Steps>
int advance_of(const Steps& steps) {
  return steps[1] == 0 ? 1 : steps[0] == 0 ? 2 : 0;
}

// Calls the loop that fits how the operands advance, by advance_of.
template <class Loops, class Value>
void run_pair(const Loops& loops, const TensorRef& a, const TensorRef& b, const int64_t* at, const int64_t* steps,
              int64_t n, Value* to, DType computes = DType::kF32) {
  float in[2][kRun];
  const bool a_still = steps[0] == 0, b_still = steps[1] == 0;
  const float* left = read_as(computes, a, at[0], steps[0], a_still ? 1 : n, in[0]);
  const float* right = read_as(computes, b, at[1], steps[1], b_still ? 1 : n, in[1]);
  if (a_still && b_still) {
    loops[0](left, right, to, 1);
    std::fill(to + 1, to + n, to[0]);
  } else {
    loops[advance_of(steps)](left, right, to, n);
  }
}

}  // namespace lowtide::cpu
