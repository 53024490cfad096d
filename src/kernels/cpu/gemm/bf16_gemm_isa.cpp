#include <array>
#include <cstddef>
#include <utility>

#include "kernels/cpu/bf16_tiles.h"
#include "kernels/cpu/gemm/bf16_gemm_table.h"

namespace lowtide::cpu::LT_ISA {
namespace {

static_assert(kPackedBf16Depth == kBf16Depth);
constexpr int64_t kPackedRows = kBf16Rows * (64 / kBf16Rows);

void pack_b(const half_bits* b, int64_t stride, bool transposed, int64_t depth, int64_t cols, half_bits* panels) {
  pack_bf16_b(b, stride, transposed, depth, cols, panels, (depth + kBf16Depth - 1) / kBf16Depth * kBf16Depth);
}

// Where one stretch of the depth is all, and each tile is read when it is whole, all lie in one place, in L1.
SumsLayout layout_of(int64_t depth, int64_t cols, bool add, const TileReader* reader) {
  if (!add && reader != nullptr && depth <= kNearDepth) return {kBf16Cols, 0, 0};
  return {kBf16Cols, cols, kBf16Rows};
}

void multiply(const half_bits* tiles, const half_bits* panels, int64_t rows, int64_t depth, int64_t cols, float* sums,
              bool add, const TileReader* reader) {
  multiply_bf16(tiles, panels, depth, rows, depth, cols, sums, layout_of(depth, cols, add, reader), add,
                [&](const float* tile, int64_t row, int64_t col) LT_INLINE_LAMBDA {
                  if (reader != nullptr) reader->read(reader->context, tile, row, col);
                });
}

#if defined(__AMX_BF16__)
constexpr std::nullptr_t multiply_rows = nullptr;  // tiles of rows as they are stored were not tried
#else
using TileOfRows = void (*)(const half_bits* a, int64_t a_stride, const half_bits* b, int64_t depth, float* sums,
                            bool add);
template <size_t... rows>
constexpr std::array<TileOfRows, sizeof...(rows)> tiles_of_rows(std::index_sequence<rows...>) {
  return {[](const half_bits* a, int64_t a_stride, const half_bits* b, int64_t depth, float* sums, bool add) {
    bf16_tile_of_rows<rows + 1>(a, a_stride, b, depth, sums, kBf16Cols, add);
  }...};
}
constexpr auto kTilesOfRows = tiles_of_rows(std::make_index_sequence<kBf16Rows>());  // by rows - 1

void multiply_rows(const half_bits* a, int64_t stride, const half_bits* panels, int64_t rows, int64_t depth,
                   int64_t cols, float* sums, bool add, const TileReader* reader) {
  const int64_t panel_depth = round_up(depth, kBf16Depth);
  for_bf16_tiles(
      rows, depth, cols, sums, layout_of(depth, cols, add, reader), add,
      [&](int64_t first, int64_t deep, int64_t i, int64_t j, float* tile, bool onto) LT_INLINE_LAMBDA {
        kTilesOfRows[(size_t)min_of(kBf16Rows, rows - i) - 1](
            a + i * stride + first, stride, panels + j * panel_depth + first * kBf16Cols, deep, tile, onto);
      },
      [&](const float* tile, int64_t row, int64_t col) LT_INLINE_LAMBDA {
        if (reader != nullptr) reader->read(reader->context, tile, row, col);
      });
}
#endif

// Both halves of a row, bit by bit as narrow_bf16 has them. Sums of products are never denormal here.
LT_INLINE __m512i narrow_sums(vf low, vf high) {
#if defined(__AVX512BF16__)
  const __mmask32 nan =
      _mm512_kunpackw(_mm512_cmp_ps_mask(high, high, _CMP_UNORD_Q), _mm512_cmp_ps_mask(low, low, _CMP_UNORD_Q));
  return _mm512_mask_mov_epi16((__m512i)_mm512_cvtne2ps_pbh(high, low), nan, _mm512_set1_epi16(0x7fc0));
#else
  return _mm512_inserti64x4(_mm512_castsi256_si512((__m256i)narrow_bf16(low)), (__m256i)narrow_bf16(high), 1);
#endif
}

void round_tile(const float* tile, int64_t rows, int64_t cols, half_bits* c, int64_t c_stride) {
  const auto held = (__mmask32)((uint64_t{1} << cols) - 1);
  for (int64_t r = 0; r < rows; ++r) {
    const float* sums = tile + r * kBf16Cols;
    const __m512i bits = narrow_sums(load(sums), load(sums + kLanes));
    if (cols == kBf16Cols) {
      _mm512_storeu_si512(c + r * c_stride, bits);
    } else {
      _mm512_mask_storeu_epi16(c + r * c_stride, held, bits);
    }
  }
}

}  // namespace

constinit const Bf16GemmTable bf16_gemm_table = {kBf16Rows, kBf16Cols, kPackedRows,   pack_bf16_a,
                                                 pack_b,    multiply,  multiply_rows, round_tile};

}  // namespace lowtide::cpu::LT_ISA
