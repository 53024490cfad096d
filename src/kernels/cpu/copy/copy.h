// Copies for kernels that need their operands elsewhere.
#pragma once

#include "kernels/walk.h"

namespace lowtide::cpu {

struct CopyDim {
  int64_t size, src, dst;  // strides in elements
};

// to = from, broadcast and converted: any strides; bool, i32, i64, bf16, f16, f32 and f64, or equal dtypes. How it goes
// is decided when it is made; nothing is copied where there are no elements.
struct TensorCopy {
  TensorCopy() = default;
  TensorCopy(const BoundCall& call, const TensorRef& from, const TensorRef& to);
  void run(const void* from, void* to) const {
    if (move != nullptr) move(*this, static_cast<const char*>(from), static_cast<char*>(to));
  }

  using Move = void (*)(const TensorCopy&, const char* src, char* dst);
  using DenseLoop = void (*)(const void* src, void* dst, int64_t n);
  using StridedLoop = void (*)(const void* src, int64_t src_step, void* dst, int64_t dst_step, int64_t n);

  Move move = nullptr;
  Runs<2> runs;
  // Of one dtype: a place in runs.rows is a run along the last dim, or the transpose of it and `across`.
  CopyDim along = {}, across = {};
  int64_t places = 0;
  // Of two dtypes; nullptr: dense runs have no loop of their own.
  DenseLoop dense = nullptr;
  StridedLoop strided = nullptr;
  int64_t src_bytes = 0, dst_bytes = 0;  // of an element
};

}  // namespace lowtide::cpu
