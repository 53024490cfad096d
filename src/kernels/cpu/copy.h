// Bytes moved and converted: strided copies, transposes, casts.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace lowtide::cpu {

// dst[i…] = src[i…] over a box of `rank` <= 8 sizes; strides in elements, stride 0 in src repeats. dst and src do not
// overlap. Runs that are contiguous in both are copied whole, transposes go by blocks.
void copy_strided(int rank, const int64_t* sizes, const void* src, const int64_t* src_strides, void* dst,
                  const int64_t* dst_strides, int64_t element_bytes);

// Whether `cast` knows the pair: f32 to and from bool, i32, i64, bf16, f16, f64, and equal types.
bool can_cast(DType from, DType to);
// To integers towards zero, to bool by x != 0, to bf16 and f16 to nearest even, as in PyTorch.
void cast(DType from, DType to, const void* src, void* dst, int64_t n);

}  // namespace lowtide::cpu
