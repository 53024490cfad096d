// What window_isa.cpp hands to window_convolution.cpp: serial blocks of convolutions as products of matrices. Rows are
// places of images, which are read where they lie; what a window has beyond an image is zeros.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace lowtide::cpu {

constexpr int64_t kMostTaps = 36;

// A grid of places in each of some images: the rows, line by line. Each is a place of one image, at which something is
// written, and one of another, from which the taps are counted. Of volumes, images are the slices of one.
struct WindowGrid {
  int64_t images, height, width;
  int64_t to_height, to_width;                 // of the images that are written
  int64_t to_top, to_left, to_down, to_right;  // the grid's first place there, and its steps
  int64_t from_height, from_width;             // of those that are read
  int64_t from_top, from_left, from_down, from_right;
  bool is_padded = false;  // no tap of any row is beyond an image, or beyond the slices

  int64_t rows() const { return images * height * width; }
};

struct WindowTap {
  int64_t down, right;  // from a row's place
  int64_t at;           // its number in w
  int64_t deep = 0;     // slices from a row's; of what is padded alone
};

// to[row, col] = sum over taps and k of from[row + tap, k] w[col, k, tap], + bias[col].
struct ProductOfWindows {
  int64_t depth, cols;
  const float* from;
  int64_t from_stride;  // numbers from one place to the next
  float* to;
  int64_t to_stride;
  const float* w;
  int64_t w_depth, w_col;  // numbers from one k, one col to the next; those of a window lie side by side
  const float* bias;       // null: none
};

struct WindowProduct : ProductOfWindows {
  WindowGrid grid;
  WindowTap taps[kMostTaps];
  int64_t tap_count, window;  // of the window's
};

// dw[row, k, tap] = sum over places of dy[place, row] x[place + tap, k]: the grid has all places of dy.
struct WindowSums {
  WindowGrid grid;
  WindowTap taps[kMostTaps];
  int64_t tap_count;  // the whole window
  int64_t depth;      // k of a row of dw
  const float* dy;
  int64_t dy_stride;
  const float* x;
  int64_t x_stride;
  float* dw;
  bool adds = false;  // to what dw has
};

struct WindowTable {
  int64_t product_rows, product_cols;                    // multiples of which blocks of a product are cut
  int64_t most_cols;                                     // of a block of a product
  int64_t tile_rows, tile_cols;                          // multiples of which blocks of sums are cut
  int64_t most_rows, most_depth;                         // of a block of sums
  int64_t (*product_floats)(const WindowProduct& call);  // of scratch for one block
  // Rows [row, row + rows) of cols [col, col + cols).
  void (*product)(const WindowProduct& call, int64_t row, int64_t rows, int64_t col, int64_t cols, float* scratch);
  int64_t (*sums_floats)(const WindowSums& call, int64_t rows, int64_t depth);
  // Rows [row, row + rows) of k in [first, first + depth).
  void (*sums)(const WindowSums& call, int64_t row, int64_t rows, int64_t first, int64_t depth, float* scratch);
};

LT_ISA_TABLES(WindowTable, window_table)

}  // namespace lowtide::cpu
