// What this machine's cores reach at most: multiplications in registers, copies in memory. For ctypes (loops.py), which
// calls from as many threads as it asks about. Each function returns what it did, in FLOPs or bytes, or 0 where the
// processor lacks the instruction.
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define LOOP extern "C" __attribute__((visibility("default"))) double

namespace {

#if defined(__x86_64__)
constexpr int kSums = 24;  // more than latency times throughput

// Before: sums that the compiler cannot know to be equal. After: sums that somebody reads.
#define OPAQUE(sums) \
  for (auto& sum : sums) asm volatile("" : "+v"(sum))

__attribute__((target("avx512f"))) double multiply_512(int64_t times) {
  __m512 sums[kSums] = {}, a = _mm512_set1_ps(0.5f);
  OPAQUE(sums);
  for (int64_t i = 0; i < times; ++i) {
    asm volatile("" : "+v"(a));
#pragma GCC unroll 24
    for (int k = 0; k < kSums; ++k) sums[k] = _mm512_fmadd_ps(a, a, sums[k]);
  }
  OPAQUE(sums);
  return 32.0 * kSums * static_cast<double>(times);
}

__attribute__((target("avx2,fma"))) double multiply_256(int64_t times) {
  constexpr int kFewer = 12;  // of sixteen registers
  __m256 sums[kFewer] = {}, a = _mm256_set1_ps(0.5f);
  OPAQUE(sums);
  for (int64_t i = 0; i < times; ++i) {
    asm volatile("" : "+v"(a));
#pragma GCC unroll 12
    for (int k = 0; k < kFewer; ++k) sums[k] = _mm256_fmadd_ps(a, a, sums[k]);
  }
  OPAQUE(sums);
  return 16.0 * kFewer * static_cast<double>(times);
}

__attribute__((target("avx512f,avx512bf16"))) double multiply_bf16(int64_t times) {
  __m512 sums[kSums] = {};
  __m512i a = _mm512_set1_epi32(0x3f003f00);
  OPAQUE(sums);
  for (int64_t i = 0; i < times; ++i) {
    asm volatile("" : "+v"(a));
#pragma GCC unroll 24
    for (int k = 0; k < kSums; ++k) sums[k] = _mm512_dpbf16_ps(sums[k], (__m512bh)a, (__m512bh)a);
  }
  OPAQUE(sums);
  return 64.0 * kSums * static_cast<double>(times);
}

struct TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

__attribute__((target("amx-tile,amx-bf16"))) double multiply_tiles(int64_t times) {
  static constexpr TileShapes shapes;  // stores to a local one may be dropped: GCC 12's intrinsic reads eight bytes
  _tile_loadconfig(&shapes);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  for (int64_t i = 0; i < times; ++i) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_release();
  return 4 * 2.0 * 16 * 16 * 32 * static_cast<double>(times);
}
#endif

}  // namespace

LOOP loop_f32(int64_t times) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return multiply_512(times);
  if (__builtin_cpu_supports("fma")) return multiply_256(times);
#endif
  return 0 * static_cast<double>(times);
}

LOOP loop_bf16(int64_t times) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bf16")) return multiply_bf16(times);
#endif
  return 0 * static_cast<double>(times);
}

// Only where Linux lets this process use tiles: lowtide asks for it when it is loaded (kernels/cpu/isa.cpp).
LOOP loop_tiles(int64_t times) {
#if defined(__x86_64__)
  return multiply_tiles(times);
#endif
  return 0 * static_cast<double>(times);
}

// From one half of the memory to the other; read and written bytes count.
LOOP loop_copy(char* memory, int64_t size_bytes, int64_t times) {
  for (int64_t i = 0; i < times; ++i) {
    std::memcpy(memory, memory + size_bytes / 2, static_cast<size_t>(size_bytes / 2));
    asm volatile("" : : "r"(memory) : "memory");
  }
  return static_cast<double>(size_bytes) * static_cast<double>(times);
}
