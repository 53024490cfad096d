// For tests: f32 tensors over memory of theirs.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace lowtide {

inline TensorRef dense(void* data, std::vector<int64_t> sizes) {
  TensorRef tensor;
  tensor.data = data;
  tensor.rank = static_cast<int32_t>(sizes.size());
  tensor.present = true;
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0; stride *= sizes[i]) {
    tensor.sizes[i] = sizes[i];
    tensor.strides[i] = stride;
  }
  return tensor;
}

}  // namespace lowtide
