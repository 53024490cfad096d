// Register tiles of matrix products. For files *_isa.cpp only.
//   C (rows x cols) = or += A (rows x depth) B (depth x cols)
// A is read by broadcasts, in place or from tiles of kTileRows rows; B is packed into panels of kTileCols columns. Both
// packings are depth-major and padded with zeros. Every element of the product is one chain of fma over the depth in
// ascending order from 0; tiles change no bit, cuts of the depth do.
#pragma once

#include "kernels/cpu/lane_transpose.h"

namespace lowtide::cpu::LT_ISA {

constexpr int kTileRows = LT_LANES == 16 ? 14 : 6;
constexpr int kTileCols = 2 * kLanes;

// panel[k * kTileCols + j] = source[k * step + j] for j < cols, 0 beyond.
static inline void pack_panel(const float* source, int64_t step, int64_t depth, int64_t cols, float* panel) {
  if (cols == kTileCols) {
    for (int64_t k = 0; k < depth; ++k, source += step, panel += kTileCols) {
      store(panel, load(source));
      store(panel + kLanes, load(source + kLanes));
    }
    return;
  }
  for (int64_t k = 0; k < depth; ++k, source += step, panel += kTileCols) {
    for (int64_t j = 0; j < kTileCols; ++j) panel[j] = j < cols ? source[j] : 0.0f;
  }
}

// panel[k * kTileCols + j] = source[j * step + k] for j < cols, 0 beyond.
static inline void pack_panel_transposed(const float* source, int64_t step, int64_t depth, int64_t cols, float* panel) {
  for (int64_t k = 0; k < depth; k += kLanes) {
    const int64_t count = min_of(kLanes, depth - k);
    for (int64_t j = 0; j < kTileCols; j += kLanes) {
      vf rows[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const float* from = source + (j + i) * step + k;
        rows[i] = j + i >= cols ? vf{} : count == kLanes ? load(from) : load(from, static_cast<int>(count));
      }
      transpose(rows);
      for (int i = 0; i < count; ++i) store(panel + (k + i) * kTileCols + j, rows[i]);
    }
  }
}

// A whole matrix B (depth x cols) as panels, panel_stride floats apart. By a few rows at a time, which are read to
// their ends: rows far apart lie on as many pages.
LT_INLINE void pack(const float* source, int64_t step, int64_t depth, int64_t cols, float* panels,
                    int64_t panel_stride) {
  constexpr int64_t kRowsAtOnce = 8;
  for (int64_t k = 0; k < depth; k += kRowsAtOnce) {
    const int64_t rows = min_of(kRowsAtOnce, depth - k);
    float* to = panels + k * kTileCols;
    for (int64_t j = 0; j < cols; j += kTileCols, to += panel_stride) {
      pack_panel(source + k * step + j, step, rows, min_of(kTileCols, cols - j), to);
    }
  }
}

// The same from B stored as (cols x depth).
LT_INLINE void pack_transposed(const float* source, int64_t step, int64_t depth, int64_t cols, float* panels,
                               int64_t panel_stride) {
  for (int64_t j = 0; j < cols; j += kTileCols, panels += panel_stride) {
    pack_panel_transposed(source + j * step, step, depth, min_of(kTileCols, cols - j), panels);
  }
}

// Numbers [i, min(kTileRows, i + kLanes)) of a column of a tile. Whole vectors run over into the next column, so
// columns are written in order and the last one exactly: a masked store of AVX2 takes as long as ten whole ones on
// AMD's processors.
LT_INLINE void store_column(float* to, vf x, int64_t i, bool is_last) {
  const int64_t count = min_of(kLanes, kTileRows - i);
  if (count == kLanes || (LT_LANES == 8 && !is_last)) {
    store(to + i, x);
  } else {
    store(to + i, x, static_cast<int>(count));
  }
}

// Tiles of A that is stored by columns: tiles[t * depth + k * kTileRows + i] = alpha from[k * stride + t + i] for each
// t that is a multiple of kTileRows. A few stored rows, which lie on as many pages, to their ends.
static inline void pack_a_columns(const float* from, int64_t stride, vf alpha, int64_t rows, int64_t depth,
                                  float* tiles) {
  constexpr int64_t kRowsAtOnce = 8;
  for (int64_t first = 0; first < depth; first += kRowsAtOnce) {
    const int64_t end = min_of(depth, first + kRowsAtOnce);
    for (int64_t t = 0; t < rows; t += kTileRows) {
      for (int64_t k = first; k < end; ++k) {
        float* to = tiles + t * depth + k * kTileRows;
        __builtin_prefetch(from + (k + kRowsAtOnce) * stride + t);
        for (int64_t i = 0; i < kTileRows; i += kLanes) {
          const int64_t read = min_of(min_of(kLanes, kTileRows - i), rows - t - i);
          store_column(to, read > 0 ? load(from + k * stride + t + i, static_cast<int>(read)) * alpha : vf{}, i,
                       k + 1 == depth);
        }
      }
    }
  }
}

// How A lies: in rows (a_step 1), in columns (a_row 1), or packed: tile[k * kTileRows + i], whose constant offsets
// leave all registers to the sums. kWholeRows: in rows, none of them missing, one address for three of them.
enum class Left { kRows, kWholeRows, kColumns, kTile };

// The first `cols` sums of a row, onto the addend unless it is null.
LT_INLINE void store_sums(vf sum0, vf sum1, float* to, const float* addend, int cols) {
  if (cols == kTileCols) {
    store(to, addend != nullptr ? load(addend) + sum0 : sum0);
    store(to + kLanes, addend != nullptr ? load(addend + kLanes) + sum1 : sum1);
    return;
  }
  const int cols0 = cols < kLanes ? cols : kLanes, cols1 = cols - cols0;
  if (cols0 == kLanes) {
    store(to, addend != nullptr ? load(addend) + sum0 : sum0);
  } else {
    store(to, addend != nullptr ? load(addend, cols0) + sum0 : sum0, cols0);
  }
  if (cols1 > 0) store(to + kLanes, addend != nullptr ? load(addend + kLanes, cols1) + sum1 : sum1, cols1);
}

// Rows at or beyond `rows` compute row 0 again, or the packing's padding, and are not stored. Loops over rows are
// unrolled, so that the sums stay in registers. kRows: of the tile, where fewer than kTileRows are there to multiply.
template <Left left, int kRows = kTileRows>
static __attribute__((noinline)) void tile(int64_t depth, const float* a, int64_t a_row, int64_t a_step, int rows,
                                           const float* panel, float* c, int64_t c_row, int cols, bool add) {
  constexpr int kGroup = 3, kGroups = (kRows + kGroup - 1) / kGroup;
  vf sum0[kRows], sum1[kRows];
  const float *row[kRows], *group[kGroups];
#pragma GCC unroll 14
  for (int i = 0; i < kRows; ++i) {
    row[i] = a + (i < rows ? i : 0) * a_row;
    sum0[i] = sum1[i] = vf{};
  }
#pragma GCC unroll 5
  for (int g = 0; g < kGroups; ++g) group[g] = a + g * kGroup * a_row;
  const int64_t step = left == Left::kRows || left == Left::kWholeRows ? 1 : left == Left::kTile ? kTileRows : a_step;
  int64_t at = 0;
  const auto add_products = [&](int64_t count) LT_INLINE_LAMBDA {
#pragma GCC unroll 1
    for (int64_t k = 0; k < count; ++k, at += step) {
      const vf b0 = load(panel), b1 = load(panel + kLanes);
      panel += kTileCols;
#pragma GCC unroll 14
      for (int i = 0; i < kRows; ++i) {
        const vf x = splat(left == Left::kTile        ? a[at + i]
                           : left == Left::kWholeRows ? group[i / kGroup][i % kGroup * a_row]
                                                      : row[i][at]);
        sum0[i] = fma(x, b0, sum0[i]);
        sum1[i] = fma(x, b1, sum1[i]);
      }
      if (left == Left::kWholeRows) {
#pragma GCC unroll 5
        for (int g = 0; g < kGroups; ++g) {
          ++group[g];
          asm("" : "+r"(group[g]));  // else the compiler counts with an address a row, more than there are registers
        }
      }
    }
  };
  // C is touched only after the whole depth: fetch it meanwhile, a row at a time, since fetches of all rows at once
  // would hold up the loads of the panel.
  const int64_t between = depth / rows;
  for (int i = 0; i < rows; ++i) {
    __builtin_prefetch(c + i * c_row, 1);
    __builtin_prefetch(c + i * c_row + cols - 1, 1);
    add_products(between);
  }
  add_products(depth - between * rows);
#pragma GCC unroll 14
  for (int i = 0; i < kRows; ++i) {
    if (i < rows) store_sums(sum0[i], sum1[i], c + i * c_row, add ? c + i * c_row : nullptr, cols);
  }
}

// Element (i, k) of A is a[i * a_row + k * a_step]; a_step or a_row is 1.
LT_INLINE void multiply(int64_t rows, int64_t cols, int64_t depth, const float* a, int64_t a_row, int64_t a_step,
                        const float* panels, int64_t panel_stride, float* c, int64_t c_row, bool add) {
  for (int64_t j = 0; j < cols; j += kTileCols, panels += panel_stride) {
    const int width = static_cast<int>(min_of(kTileCols, cols - j));
    for (int64_t i = 0; i < rows; i += kTileRows) {
      const int height = static_cast<int>(min_of(kTileRows, rows - i));
      (a_step == 1 ? tile<Left::kRows> : tile<Left::kColumns>)(depth, a + i * a_row, a_row, a_step, height, panels,
                                                               c + i * c_row + j, c_row, width, add);
    }
  }
}

}  // namespace lowtide::cpu::LT_ISA
