// What winograd_isa.cpp hands to winograd.cpp: serial blocks of convolutions of 3 x 3 windows at strides one, by tiles
// of 2 x 2 places of the result (Winograd's F(2 x 2, 3 x 3)). The 4 x 4 places that a tile is made of and the window
// become 16 numbers each, by sums and differences; these are multiplied one by one, summed over channels, and become 2
// x 2 again: 16 multiplications in place of 36.
#pragma once

#include <cstdint>

#include "kernels/cpu/convolution/window_table.h"

namespace lowtide::cpu {

constexpr int64_t kWinogradTaps = 9;

// Tiles, line by line, of images of height x width places; tap (0, 0) of place (0, 0) stands at (top, left) of an image
// of from_height x from_width. What lies beyond that one is zeros.
struct WinogradGrid {
  int64_t images, height, width;
  int64_t from_height, from_width, top, left;

  int64_t down() const { return (height + 1) / 2; }
  int64_t right() const { return (width + 1) / 2; }
  int64_t tiles() const { return images * down() * right(); }
};

struct WinogradProduct : ProductOfWindows {
  WinogradGrid grid;
  bool is_turned;  // windows are read from their last number to their first
};

// dw[row, k, tap] = sum over places of dy[place, row] x[place + tap, k].
struct WinogradSums {
  WinogradGrid grid;
  int64_t depth;  // k of a row of dw
  const float* dy;
  int64_t dy_stride;
  const float* x;
  int64_t x_stride;
  float* dw;
};

struct WinogradTable {
  int64_t tile_rows, tile_cols;                            // multiples of which blocks are cut
  int64_t (*most_cols)(int64_t depth);                     // of a block of a product
  int64_t (*product_floats)(const WinogradProduct& call);  // of scratch for one block
  // Tiles [tile, tile + tiles) of cols [col, col + cols).
  void (*product)(const WinogradProduct& call, int64_t tile, int64_t tiles, int64_t col, int64_t cols, float* scratch);
  int64_t most_rows, most_depth;  // of a block of sums
  int64_t (*sums_floats)(const WinogradSums& call, int64_t rows, int64_t depth);
  // Rows [row, row + rows) of k in [first, first + depth).
  void (*sums)(const WinogradSums& call, int64_t row, int64_t rows, int64_t first, int64_t depth, float* scratch);
};

LT_ISA_TABLES(WinogradTable, winograd_table)

}  // namespace lowtide::cpu
