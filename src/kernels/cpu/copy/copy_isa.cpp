#include "kernels/cpu/copy/copy_table.h"
#include "kernels/cpu/lane_transpose.h"

namespace lowtide::cpu::LT_ISA {
namespace {

void transpose_block(const float* src, int64_t src_stride, float* dst, int64_t dst_stride, int64_t rows, int64_t cols) {
  const int64_t whole_rows = rows / kLanes * kLanes, whole_cols = cols / kLanes * kLanes;
  for (int64_t j = 0; j < whole_cols; j += kLanes) {
    for (int64_t i = 0; i < whole_rows; i += kLanes) {
      vf block[kLanes];
      for (int k = 0; k < kLanes; ++k) block[k] = load(src + (i + k) * src_stride + j);
      transpose(block);
      for (int k = 0; k < kLanes; ++k) store(dst + (j + k) * dst_stride + i, block[k]);
    }
  }
  for (int64_t j = 0; j < cols; ++j) {
    for (int64_t i = j < whole_cols ? whole_rows : 0; i < rows; ++i) dst[j * dst_stride + i] = src[i * src_stride + j];
  }
}

typedef uint16_t half_bits;

void bf16_to_f32(const void* src, void* dst, int64_t n) {
  const auto* x = (const half_bits*)src;
  auto* y = (uint32_t*)dst;
  for (int64_t i = 0; i < n; ++i) y[i] = (uint32_t)x[i] << 16;
}

void f32_to_bf16(const void* src, void* dst, int64_t n) {
  const auto* x = (const uint32_t*)src;
  auto* y = (half_bits*)dst;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t rounded = (x[i] + 0x7fffu + ((x[i] >> 16) & 1u)) >> 16;
    y[i] = (half_bits)((x[i] & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
  }
}

void f16_to_f32(const void* src, void* dst, int64_t n) {
  const auto* x = (const _Float16*)src;
  auto* y = (float*)dst;
  int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(x + i))));
#endif
  for (; i < n; ++i) y[i] = (float)x[i];
}

void f32_to_f16(const void* src, void* dst, int64_t n) {
  const auto* x = (const float*)src;
  auto* y = (_Float16*)dst;
  int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    _mm_storeu_si128((__m128i*)(y + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
  }
#endif
  for (; i < n; ++i) y[i] = (_Float16)x[i];
}

template <class From, class To>
void convert(const void* src, void* dst, int64_t n) {
  const auto* x = (const From*)src;
  auto* y = (To*)dst;
  for (int64_t i = 0; i < n; ++i) y[i] = (To)x[i];
}

void f32_to_bool(const void* src, void* dst, int64_t n) {
  const auto* x = (const float*)src;
  auto* y = (uint8_t*)dst;
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] != 0;
}

}  // namespace

constinit const CopyTable copy_table = {transpose_block,
                                        bf16_to_f32,
                                        f16_to_f32,
                                        convert<double, float>,
                                        convert<int64_t, float>,
                                        convert<int32_t, float>,
                                        convert<uint8_t, float>,
                                        f32_to_bf16,
                                        f32_to_f16,
                                        convert<float, double>,
                                        f32_to_bool};

}  // namespace lowtide::cpu::LT_ISA
