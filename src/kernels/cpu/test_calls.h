// For tests: kernels called by name on the test's own memory.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/half.h"
#include "kernels/prepared.h"

namespace lowtide::cpu {

// Row-major unless strides are given; absent for a null pointer.
inline TensorRef tensor(const void* data, DType dtype, const std::vector<int64_t>& sizes,
                        const std::vector<int64_t>& strides = {}) {
  TensorRef ref;
  if (data == nullptr) return ref;
  ref.data = const_cast<void*>(data);
  ref.dtype = dtype;
  ref.present = true;
  ref.rank = static_cast<int32_t>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), ref.sizes);
  std::copy(strides.begin(), strides.end(), ref.strides);
  int64_t stride = 1;
  for (int i = ref.rank - 1; strides.empty() && i >= 0; stride *= ref.sizes[i--]) ref.strides[i] = stride;
  return ref;
}
inline TensorRef floats(const float* data, const std::vector<int64_t>& sizes,
                        const std::vector<int64_t>& strides = {}) {
  return tensor(data, DType::kF32, sizes, strides);
}
inline std::vector<BFloat16> brains(const std::vector<float>& values) { return {values.begin(), values.end()}; }
inline TensorRef brains(const BFloat16* data, const std::vector<int64_t>& sizes) {
  return tensor(data, DType::kBF16, sizes);
}
// Values as `dtype`, bf16 or f16, stores them.
inline std::vector<uint16_t> halves(DType dtype, const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (float value : values) bits.push_back(dtype == DType::kBF16 ? BFloat16(value).bits : Float16(value).bits);
  return bits;
}
inline std::vector<float> widened(DType dtype, const std::vector<uint16_t>& bits) {
  std::vector<float> values;
  for (uint16_t each : bits)
    values.push_back(dtype == DType::kBF16 ? float{std::bit_cast<BFloat16>(each)}
                                           : float{std::bit_cast<Float16>(each)});
  return values;
}
inline TensorRef integers(const std::vector<int64_t>& values) {
  return tensor(values.data(), DType::kI64, {static_cast<int64_t>(values.size())});
}

// Scratch holds NaN before, and nothing may be written past it.
inline KernelStatus run_kernel(std::string_view name, const std::vector<TensorRef>& inputs,
                               const std::vector<TensorRef>& outputs, const BoundAttrs& attrs, uint64_t key = 0) {
  const Kernel* kernel = find_kernel(name);
  EXPECT_NE(kernel, nullptr) << name;
  if (kernel == nullptr) return "no such kernel";
  BoundCall call{{inputs, outputs, nullptr, 0, key}, &attrs};
  if (kernel->scratch_bytes != nullptr) call.scratch_bytes = kernel->scratch_bytes(call);
  const size_t words = static_cast<size_t>((call.scratch_bytes + 7) / 8), canary = 8;
  std::vector<double> memory(words + canary + 8);
  double* scratch = memory.data();
  while (reinterpret_cast<uintptr_t>(scratch) % 64 != 0) ++scratch;
  std::memset(scratch, 0xff, words * sizeof(double));  // NaN in every width
  std::fill(scratch + words, memory.data() + memory.size(), 42.0);
  call.scratch = scratch;
  const KernelStatus status = run_once(*kernel, call);
  for (double* past = scratch + words; past < memory.data() + memory.size(); ++past)
    EXPECT_EQ(*past, 42.0) << name << " wrote past its scratch";
  return status;
}

}  // namespace lowtide::cpu
