// How the reference kernels read and write tensors: whatever a tensor stores, arithmetic happens in double (floating
// point) or int64_t (integers, bool; stored modulo 2^bits). So one loop serves every dtype and stride, results are at
// least as accurate as PyTorch's f32, and sums need no special order: every sum of a reference kernel runs in
// row-major order of the summed elements, in double, in blocks of kRun, whatever the threads.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/strided.h"

namespace lowtide::reference {

constexpr int64_t kRun = 256;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// n elements from `offset` on, `stride` apart (both in elements). Integers read as doubles and the other way round are
// converted; doubles outside of int64_t become its smallest value.
void load(const TensorRef& tensor, int64_t offset, int64_t stride, int64_t n, double* values);
void load(const TensorRef& tensor, int64_t offset, int64_t stride, int64_t n, int64_t* values);
void store(const TensorRef& tensor, int64_t offset, int64_t stride, int64_t n, const double* values);
void store(const TensorRef& tensor, int64_t offset, int64_t stride, int64_t n, const int64_t* values);

// Up to kRun values as a tensor of `dtype`, a float type, stores them.
void round_to(DType dtype, double* values, int64_t n);
inline double rounded(DType dtype, double value) {
  round_to(dtype, &value, 1);
  return value;
}

double get_converted(const TensorRef& tensor, int64_t offset);
int64_t get_int(const TensorRef& tensor, int64_t offset);
void set_converted(const TensorRef& tensor, int64_t offset, double value);

// Inlined for the dtypes that are most of what is read one by one.
inline double get(const TensorRef& tensor, int64_t offset) {
  if (tensor.dtype == DType::kF64) return tensor.as<double>()[offset];
  if (tensor.dtype == DType::kF32) return tensor.as<float>()[offset];
  return get_converted(tensor, offset);
}
inline void set(const TensorRef& tensor, int64_t offset, double value) {
  if (tensor.dtype == DType::kF64) {
    tensor.as<double>()[offset] = value;
  } else if (tensor.dtype == DType::kF32) {
    tensor.as<float>()[offset] = static_cast<float>(value);
  } else {
    set_converted(tensor, offset, value);
  }
}
void set_int(const TensorRef& tensor, int64_t offset, int64_t value);

// Moves elements of `size` bytes without looking at them.
void copy_elements(void* dst, int64_t dst_stride, const void* src, int64_t src_stride, int64_t n, int64_t size);

inline char* address(const TensorRef& tensor, int64_t offset) {
  return static_cast<char*>(tensor.data) + offset * size_bytes(tensor.dtype);
}

// Integers are never NaN.
inline bool is_nan_value(double value) { return value != value; }
inline bool is_nan_value(int64_t) { return false; }

inline int64_t product(const int64_t* sizes, int begin, int end) {
  int64_t result = 1;
  for (int i = begin; i < end; ++i) result *= sizes[i];
  return result;
}

}  // namespace lowtide::reference
