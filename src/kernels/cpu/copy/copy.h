// Copies for kernels that need their operands elsewhere.
#pragma once

#include "kernels/kernel.h"

namespace lowtide::cpu {

// to = from, broadcast and converted: any strides; bool, i32, i64, bf16, f16, f32 and f64, or equal dtypes.
void copy_tensor(const TensorRef& from, const TensorRef& to);

}  // namespace lowtide::cpu
