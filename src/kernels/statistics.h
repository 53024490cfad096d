// What a tensor looks like in a few numbers, for whoever compares two runs: the Inspect op, and Python for tensors of
// PyTorch's.
#pragma once

#include "kernels/kernel.h"

namespace lowtide {

struct Statistics {
  static constexpr int kSamples = 128;

  DType dtype = DType::kF32;
  int32_t rank = 0;
  int64_t sizes[kMaxRank] = {};
  int64_t numel = 0;
  int64_t nan = 0, inf = 0, negative = 0, positive = 0, zero = 0;  // elements that are so
  // NaN where there is none: of no elements; std (of a sample: over numel - 1) of fewer than two. A NaN among the
  // elements makes all four NaN.
  double min = 0, max = 0, mean = 0, std = 0;
  int32_t samples = 0;  // the first elements in row-major order
  double sample[kSamples] = {};
};

// Reads the tensor where it is, in its own strides, once (the cache twice). Memory: constant. The same bits for any
// number of threads.
Statistics statistics(const TensorRef& tensor);

}  // namespace lowtide
