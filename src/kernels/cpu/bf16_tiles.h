// bf16 operands packed as the instructions that multiply bf16 read them, and their product. For files *_isa.cpp of the
// sets avx512_bf16 and amx only. Packed operands lie in tiles of kBf16Rows rows or kBf16Cols columns and of kBf16Depth
// numbers along k, padded with zeros; B as pairs of rows:
//   avx512_bf16: panel[k / 2][column][k % 2]; A lies as tile[k / 2][row][k % 2]: a pair is broadcast, vdpbf16ps.
//   amx: panel[k / 32][column / 16][k / 2 % 16][column % 16][k % 2]; A lies as tile[k / 32][row][k % 32]: four
//   registers of sums, tdpbf16ps.
// Sums are one chain over the whole depth, in pairs or in groups of 32: cuts at multiples of kBf16Depth change no bit.
#pragma once

#include "kernels/cpu/half_vectors.h"
#include "kernels/cpu/lane_transpose.h"

namespace lowtide::cpu::LT_ISA {

constexpr int64_t kBf16Depth = 32;
constexpr int64_t kBf16Cols = 2 * kLanes;
constexpr int64_t kPairs = kBf16Depth / 2;
#if defined(__AMX_BF16__)
constexpr int64_t kBf16Rows = 2 * kLanes;
constexpr int64_t kPairStep = 2 * kLanes, kHalfStep = kPairs * kPairStep;  // of a panel, in numbers
constexpr int64_t kNearDepth = 256;  // a tile's part of A and of B, which both stay in L1
#else
constexpr int64_t kBf16Rows = 14;
constexpr int64_t kPairStep = 2 * kBf16Cols, kHalfStep = 2 * kLanes;
constexpr int64_t kNearDepth = 1024;  // a tile's part of A stays in L1; panels of B go by from L2
#endif
// Packed to their ends before those below: each lies on a page of its own.
constexpr int64_t kRowsAtOnce = 8;

// The first `count` of 32 numbers, zeros after them.
LT_INLINE __m512i load_halves(const half_bits* from, int64_t count) {
  if (count >= 2 * kLanes) return _mm512_loadu_si512(from);
  const auto mask = (__mmask32)((uint64_t{1} << (count > 0 ? count : 0)) - 1);
  return _mm512_maskz_loadu_epi16(mask, from);
}

// Two rows of 32 columns as 32 pairs: the first sixteen, the others.
LT_INLINE void interleave(__m512i even, __m512i odd, __m512i* first, __m512i* second) {
  const __m512i low = _mm512_unpacklo_epi16(even, odd), high = _mm512_unpackhi_epi16(even, odd);
  const __m512i in_first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i in_second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  *first = _mm512_permutex2var_epi64(low, in_first, high);
  *second = _mm512_permutex2var_epi64(low, in_second, high);
}

// pairs[p] holds, for sixteen lines side by side in memory, their numbers 2 p and 2 p + 1: lines are rows `stride`
// apart.
LT_INLINE void pairs_of_rows(const half_bits* from, int64_t stride, int64_t lines, int64_t depth, vf* pairs) {
  for (int i = 0; i < kLanes; ++i) pairs[i] = i < lines ? (vf)load_halves(from + i * stride, depth) : vf{};
  transpose(pairs);
}

// Row k of B begins at b + k * stride, or column k where it is transposed; panels hold panel_depth numbers along k, a
// multiple of kBf16Depth.
static void pack_bf16_b(const half_bits* b, int64_t stride, bool transposed, int64_t depth, int64_t cols, half_bits* to,
                        int64_t panel_depth) {
  if (!transposed) {
    for (int64_t k0 = 0; k0 < round_up(depth, kBf16Depth); k0 += kRowsAtOnce) {
      for (int64_t j = 0; j < cols; j += kBf16Cols) {
        for (int64_t k = k0; k < k0 + kRowsAtOnce; k += 2) {
          const half_bits* row = b + k * stride + j;
          half_bits* pair =
              to + j * panel_depth + k / kBf16Depth * kBf16Depth * kBf16Cols + k % kBf16Depth / 2 * kPairStep;
          __builtin_prefetch(row + kRowsAtOnce * stride);
          __builtin_prefetch(row + (kRowsAtOnce + 1) * stride);
          const __m512i even = k < depth ? load_halves(row, cols - j) : __m512i{};
          const __m512i odd = k + 1 < depth ? load_halves(row + stride, cols - j) : __m512i{};
          __m512i first, second;
          interleave(even, odd, &first, &second);
          _mm512_storeu_si512(pair, first);
          _mm512_storeu_si512(pair + kHalfStep, second);
        }
      }
    }
    return;
  }
  for (int64_t j = 0; j < cols; j += kBf16Cols) {
    const int64_t width = min_of(kBf16Cols, cols - j);
    half_bits* panels = to + j * panel_depth;
    for (int64_t k = 0; k < depth; k += kBf16Depth, panels += kBf16Depth * kBf16Cols) {
      const int64_t deep = min_of(kBf16Depth, depth - k);
      for (int64_t half = 0; half < 2; ++half) {
        vf pairs[kLanes];
        pairs_of_rows(b + (j + half * kLanes) * stride + k, stride, width - half * kLanes, deep, pairs);
        for (int p = 0; p < kPairs; ++p) store((float*)(panels + p * kPairStep + half * kHalfStep), pairs[p]);
      }
    }
  }
}

// pack_bf16_a: row i of A begins at a + i * stride, or column i where it is transposed.
#if defined(__AMX_BF16__)

// A block of 32 columns and up to 32 rows of a row-major matrix as pairs of its rows.
template <class Store>
LT_INLINE void for_pairs_of_columns(const half_bits* from, int64_t stride, int64_t depth, int64_t cols, Store store) {
  for (int64_t p = 0; p < kPairs; ++p) {
    const half_bits* row = from + 2 * p * stride;
    const __m512i even = 2 * p < depth ? load_halves(row, cols) : __m512i{};
    const __m512i odd = 2 * p + 1 < depth ? load_halves(row + stride, cols) : __m512i{};
    __m512i first, second;
    interleave(even, odd, &first, &second);
    store(p, first, second);
  }
}

static void pack_bf16_a(const half_bits* a, int64_t stride, bool transposed, int64_t rows, int64_t depth,
                        half_bits* tiles) {
  for (int64_t i = 0; i < rows; i += kBf16Rows) {
    const int64_t height = min_of(kBf16Rows, rows - i);
    for (int64_t k = 0; k < depth; k += kBf16Depth, tiles += kBf16Rows * kBf16Depth) {
      const int64_t deep = min_of(kBf16Depth, depth - k);
      if (!transposed) {
        for (int64_t r = 0; r < kBf16Rows; ++r) {
          const __m512i row = r < height ? load_halves(a + (i + r) * stride + k, deep) : __m512i{};
          _mm512_storeu_si512(tiles + r * kBf16Depth, row);
        }
        continue;
      }
      vf first[kLanes], second[kLanes];
      for_pairs_of_columns(a + k * stride + i, stride, deep, height,
                           [&](int64_t p, __m512i low, __m512i high) LT_INLINE_LAMBDA {
                             first[p] = (vf)low;
                             second[p] = (vf)high;
                           });
      transpose(first);
      transpose(second);
      for (int r = 0; r < kLanes; ++r) {
        store((float*)(tiles + r * kBf16Depth), first[r]);
        store((float*)(tiles + (kLanes + r) * kBf16Depth), second[r]);
      }
    }
  }
}

struct TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileShapes) == 64);

LT_INLINE void bf16_tile(const half_bits* a, const half_bits* b, int64_t depth, float* sums, int64_t stride, bool add) {
  const int64_t row_bytes = stride * (int64_t)sizeof(float);
  float* lower = sums + kLanes * stride;
  if (add) {
    _tile_loadd(0, sums, row_bytes);
    _tile_loadd(1, sums + kLanes, row_bytes);
    _tile_loadd(2, lower, row_bytes);
    _tile_loadd(3, lower + kLanes, row_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < depth; k += kBf16Depth) {
    _tile_loadd(4, a, 64);
    _tile_loadd(6, b, 64);
    _tile_loadd(7, b + kHalfStep, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + kLanes * kBf16Depth, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    a += kBf16Rows * kBf16Depth;
    b += kBf16Cols * kBf16Depth;
  }
  _tile_stored(0, sums, row_bytes);
  _tile_stored(1, sums + kLanes, row_bytes);
  _tile_stored(2, lower, row_bytes);
  _tile_stored(3, lower + kLanes, row_bytes);
}

#else

// A pair of each of kBf16Rows rows, and two more where the next pairs will lie, unless it is the tile's last.
LT_INLINE void store_pairs(half_bits* to, __m512i pairs, bool is_last) {
  constexpr auto kHeld = (__mmask16)((1u << kBf16Rows) - 1);
  if (is_last) {
    _mm512_mask_storeu_epi32(to, kHeld, pairs);
  } else {
    _mm512_storeu_si512(to, pairs);
  }
}

static void pack_bf16_a(const half_bits* a, int64_t stride, bool transposed, int64_t rows, int64_t depth,
                        half_bits* tiles) {
  const int64_t padded = round_up(depth, kBf16Depth);
  if (transposed) {
    for (int64_t first = 0; first < padded; first += kRowsAtOnce) {
      for (int64_t i = 0; i < rows; i += kBf16Rows) {
        const auto held = (__mmask16)((1u << min_of(kBf16Rows, rows - i)) - 1);
        for (int64_t k = first; k < first + kRowsAtOnce; k += 2) {
          const half_bits* row = a + k * stride + i;
          __builtin_prefetch(row + kRowsAtOnce * stride);
          __builtin_prefetch(row + (kRowsAtOnce + 1) * stride);
          const __m256i even = k < depth ? _mm256_maskz_loadu_epi16(held, row) : __m256i{};
          const __m256i odd = k + 1 < depth ? _mm256_maskz_loadu_epi16(held, row + stride) : __m256i{};
          const __m512i pairs =
              _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
          store_pairs(tiles + i * padded + k * kBf16Rows, pairs, k + 2 == padded);
        }
      }
    }
    return;
  }
  for (int64_t i = 0; i < rows; i += kBf16Rows) {
    const int64_t height = min_of(kBf16Rows, rows - i);
    for (int64_t k = 0; k < depth; k += kBf16Depth, tiles += kBf16Rows * kBf16Depth) {
      vf pairs[kLanes];
      pairs_of_rows(a + i * stride + k, stride, height, min_of(kBf16Depth, depth - k), pairs);
      for (int p = 0; p < kPairs; ++p) {
        store_pairs(tiles + p * 2 * kBf16Rows, (__m512i)pairs[p], k + kBf16Depth >= depth && p + 1 == kPairs);
      }
    }
  }
}

LT_INLINE void bf16_tile(const half_bits* a, const half_bits* b, int64_t depth, float* sums, int64_t stride, bool add) {
  vf sum0[kBf16Rows], sum1[kBf16Rows];
#pragma GCC unroll 14
  for (int i = 0; i < kBf16Rows; ++i) {
    sum0[i] = add ? load(sums + i * stride) : vf{};
    sum1[i] = add ? load(sums + i * stride + kLanes) : vf{};
  }
  for (int64_t k = 0; k < depth; k += 2) {
    const auto b0 = (__m512bh)_mm512_loadu_si512(b), b1 = (__m512bh)_mm512_loadu_si512(b + kBf16Cols);
#pragma GCC unroll 14
    for (int i = 0; i < kBf16Rows; ++i) {
      int32_t pair;
      __builtin_memcpy(&pair, a + 2 * i, sizeof pair);
      const auto x = (__m512bh)_mm512_set1_epi32(pair);
      sum0[i] = _mm512_dpbf16_ps(sum0[i], x, b0);
      sum1[i] = _mm512_dpbf16_ps(sum1[i], x, b1);
    }
    a += 2 * kBf16Rows;
    b += 2 * kBf16Cols;
  }
#pragma GCC unroll 14
  for (int i = 0; i < kBf16Rows; ++i) {
    store(sums + i * stride, sum0[i]);
    store(sums + i * stride + kLanes, sum1[i]);
  }
}

// The same of kRows rows that lie `a_stride` apart as they are stored: `depth` is even.
template <int kRows>
LT_INLINE void bf16_tile_of_rows(const half_bits* a, int64_t a_stride, const half_bits* b, int64_t depth, float* sums,
                                 int64_t stride, bool add) {
  constexpr int kGroup = 3, kGroups = (kRows + kGroup - 1) / kGroup;  // rows that one address is enough for
  vf sum0[kRows], sum1[kRows];
#pragma GCC unroll 14
  for (int i = 0; i < kRows; ++i) {
    sum0[i] = add ? load(sums + i * stride) : vf{};
    sum1[i] = add ? load(sums + i * stride + kLanes) : vf{};
  }
  const half_bits* rows[kGroups];
#pragma GCC unroll 5
  for (int g = 0; g < kGroups; ++g) rows[g] = a + g * kGroup * a_stride;
  for (int64_t k = 0; k < depth; k += 2) {
    const auto b0 = (__m512bh)_mm512_loadu_si512(b), b1 = (__m512bh)_mm512_loadu_si512(b + kBf16Cols);
#pragma GCC unroll 14
    for (int i = 0; i < kRows; ++i) {
      int32_t pair;
      __builtin_memcpy(&pair, rows[i / kGroup] + i % kGroup * a_stride, sizeof pair);
      const auto x = (__m512bh)_mm512_set1_epi32(pair);
      sum0[i] = _mm512_dpbf16_ps(sum0[i], x, b0);
      sum1[i] = _mm512_dpbf16_ps(sum1[i], x, b1);
    }
#pragma GCC unroll 5
    for (int g = 0; g < kGroups; ++g) {
      rows[g] += 2;
      asm("" : "+r"(rows[g]));  // else the compiler counts with one address a row, more than there are registers
    }
    b += 2 * kBf16Cols;
  }
#pragma GCC unroll 14
  for (int i = 0; i < kRows; ++i) {
    store(sums + i * stride, sum0[i]);
    store(sums + i * stride + kLanes, sum1[i]);
  }
}

#endif

// How tiles of sums lie, in floats: from a row to the next, from a tile's row to that of the one below, to the right.
struct SumsLayout {
  int64_t row, down, right;
};
LT_INLINE SumsLayout row_major(int64_t stride) { return {stride, stride, 1}; }

// For each tile, a stretch of the depth at a time: tile(first number along k, numbers, row, column, its sums, whether
// they are added to). done(tile, row, column): once a tile of sums is whole, which is in L1 then.
template <class Tile, class Done>
LT_INLINE void for_bf16_tiles(int64_t rows, int64_t depth, int64_t cols, float* sums, SumsLayout layout, bool add,
                              Tile multiply, Done done) {
  for (int64_t first = 0; first < depth; first += kNearDepth) {
    const int64_t deep = min_of(kNearDepth, depth - first);
    for (int64_t i = 0; i < rows; i += kBf16Rows) {
      for (int64_t j = 0; j < cols; j += kBf16Cols) {
        float* tile = sums + i * layout.down + j * layout.right;
        multiply(first, deep, i, j, tile, add || first > 0);
        if (first + deep == depth) done(tile, i, j);
      }
    }
  }
}

// sums = or += the product of whole tiles. Panels were packed for panel_depth >= depth numbers along k.
template <class Done>
LT_INLINE void multiply_bf16(const half_bits* tiles, const half_bits* panels, int64_t panel_depth, int64_t rows,
                             int64_t depth, int64_t cols, float* sums, SumsLayout layout, bool add, Done done) {
#if defined(__AMX_BF16__)
  static constexpr TileShapes shapes;  // stores to a local one may be dropped: GCC 12's intrinsic reads eight bytes
  _tile_loadconfig(&shapes);
#endif
  for_bf16_tiles(
      rows, depth, cols, sums, layout, add,
      [&](int64_t first, int64_t deep, int64_t i, int64_t j, float* tile, bool onto) LT_INLINE_LAMBDA {
        bf16_tile(tiles + i * depth + first * kBf16Rows, panels + j * panel_depth + first * kBf16Cols, deep, tile,
                  layout.row, onto);
      },
      done);
#if defined(__AMX_BF16__)
  _tile_release();
#endif
}

}  // namespace lowtide::cpu::LT_ISA
