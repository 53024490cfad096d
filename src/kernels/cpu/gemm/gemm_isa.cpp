#include "kernels/cpu/gemm/gemm_table.h"
#include "kernels/cpu/half_vectors.h"
#include "kernels/cpu/micro_kernel.h"

namespace lowtide::cpu::LT_ISA {
namespace {

// Of A at a time: whole register tiles, which stay in L2 while the panels of B go by. Rows of a block cost nothing but
// tasks, columns cost scratch.
constexpr int64_t kRows = LT_LANES == 16 ? 196 : 192;
constexpr int64_t kMostRows = 6 * kRows;
constexpr int64_t kCols = 512;
constexpr int64_t kDepth = kGemmDepth;

// tiles[t][k * kTileRows + i] = alpha A(row + t * kTileRows + i, k) for k in [first, first + depth).
void pack_a(const Gemm& call, int64_t row, int64_t rows, int64_t first, int64_t depth, float* tiles) {
  const vf alpha = splat(call.alpha);
  if (call.transpose_a) {
    pack_a_columns(call.a + first * call.a_stride + row, call.a_stride, alpha, rows, depth, tiles);
    return;
  }
  for (int64_t t = 0; t < rows; t += kTileRows, tiles += kTileRows * depth) {
    const int64_t height = min_of(kTileRows, rows - t);
    const float* from = call.a + (row + t) * call.a_stride + first;
    for (int64_t k = 0; k < depth; k += kLanes) {
      const int64_t count = min_of(kLanes, depth - k);
      for (int64_t i = 0; i < kTileRows; i += kLanes) {
        vf block[kLanes];
        for (int j = 0; j < kLanes; ++j) {
          const float* line = from + (i + j) * call.a_stride + k;
          block[j] = i + j >= height ? vf{} : count == kLanes ? load(line) : load(line, static_cast<int>(count));
          block[j] *= alpha;
        }
        transpose(block);
        for (int j = 0; j < count; ++j) store_column(tiles + (k + j) * kTileRows, block[j], i, k + j + 1 == depth);
      }
    }
  }
}

void pack_b(const Gemm& call, int64_t col, int64_t cols, int64_t first, int64_t depth, float* panels) {
  if (call.transpose_b) {
    pack_transposed(call.b + col * call.b_stride + first, call.b_stride, depth, cols, panels, depth * kTileCols);
  } else {
    pack(call.b + first * call.b_stride + col, call.b_stride, depth, cols, panels, depth * kTileCols);
  }
}

void start(const Gemm& call, int64_t row, int64_t rows, int64_t col, int64_t cols) {
  for (int64_t r = row; r < row + rows; ++r) {
    float* c = call.c + r * call.c_stride + col;
    if (call.bias != nullptr) {
      __builtin_memcpy(c, call.bias + col, sizeof(float) * cols);
    } else if (call.beta == 0) {
      __builtin_memset(c, 0, sizeof(float) * cols);
    } else if (call.beta != 1) {
      for_vectors(cols,
                  [&](int64_t i, auto count) LT_INLINE_LAMBDA { store(c + i, load(c + i, count) * call.beta, count); });
    }
  }
}

// Whether tiles read A where it lies.
bool reads_in_place(const Gemm& call) {
  return !call.transpose_a && call.alpha == 1 && !rows_meet_in_cache(kTileRows, call.a_stride * (int64_t)sizeof(float));
}

// A tile's rows stay in L1 while all panels of B go by.
void multiply_in_place(const Gemm& call, int64_t row, int64_t rows, int64_t col, int64_t cols, int64_t first,
                       int64_t depth, const float* panels, bool adds) {
  for (int64_t i = 0; i < rows; i += kTileRows) {
    const float* a = call.a + (row + i) * call.a_stride + first;
    float* c = call.c + (row + i) * call.c_stride + col;
    const int height = static_cast<int>(min_of(kTileRows, rows - i));
    // Six pointers leave room in the registers, fourteen do not.
    const auto multiply = kTileRows == 14 && height == kTileRows ? tile<Left::kWholeRows> : tile<Left::kRows>;
    for (int64_t j = 0; j < cols; j += kTileCols) {
      multiply(depth, a, call.a_stride, 1, height, panels + j * depth, c + j, call.c_stride,
               static_cast<int>(min_of(kTileCols, cols - j)), adds);
    }
  }
}

// ---- one row of C: every number of B is read once, so none is packed. The sums are those of a tile, bit for bit.

float element(const Gemm& call, int64_t row, int64_t k) {
  return call.alpha * call.a[call.transpose_a ? k * call.a_stride + row : row * call.a_stride + k];
}

LT_INLINE void finish_row(const float* sums, float* c, int64_t cols, bool adds) {
  for_vectors(cols, [&](int64_t j, auto count) LT_INLINE_LAMBDA {
    const vf sum = load(sums + j, count);
    store(c + j, adds ? load(c + j, count) + sum : sum, count);
  });
}

// B's rows one after another, onto sums that stay in L1.
void row_times_rows(const Gemm& call, int64_t row, int64_t col, int64_t cols, int64_t first, int64_t depth, bool adds,
                    float* sums) {
  constexpr int64_t kRowsAtOnce = 4;
  __builtin_memset(sums, 0, sizeof(float) * cols);
  const float* b = call.b + first * call.b_stride + col;
  int64_t k = 0;
  for (; k + kRowsAtOnce <= depth; k += kRowsAtOnce, b += kRowsAtOnce * call.b_stride) {
    vf x[kRowsAtOnce];
    for (int i = 0; i < kRowsAtOnce; ++i) x[i] = splat(element(call, row, first + k + i));
    for_vectors(cols, [&](int64_t j, auto count) LT_INLINE_LAMBDA {
      vf sum = load(sums + j, count);
      for (int i = 0; i < kRowsAtOnce; ++i) sum = fma(x[i], load(b + i * call.b_stride + j, count), sum);
      store(sums + j, sum, count);
    });
  }
  for (; k < depth; ++k, b += call.b_stride) {
    const vf x = splat(element(call, row, first + k));
    for_vectors(cols, [&](int64_t j, auto count) LT_INLINE_LAMBDA {
      store(sums + j, fma(x, load(b + j, count), load(sums + j, count)), count);
    });
  }
  finish_row(sums, call.c + row * call.c_stride + col, cols, adds);
}

// B's columns are stored as rows: blocks of kLanes x kLanes are turned in registers.
void row_times_columns(const Gemm& call, int64_t row, int64_t col, int64_t cols, int64_t first, int64_t depth,
                       bool adds, float* sums) {
  constexpr int64_t kAhead = 8 * kLanes;
  for (int64_t j = 0; j < cols; j += kLanes) {
    const int64_t height = min_of(kLanes, cols - j);
    const float* b = call.b + (col + j) * call.b_stride + first;
    vf sum = {};
    for (int64_t k = 0; k < depth; k += kLanes) {
      const int64_t count = min_of(kLanes, depth - k);
      vf lines[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        const float* from = b + i * call.b_stride + k;
        if (i < height) __builtin_prefetch(from + kAhead);
        lines[i] = i >= height ? vf{} : count == kLanes ? load(from) : load(from, static_cast<int>(count));
      }
      transpose(lines);
      for (int64_t i = 0; i < count; ++i) sum = fma(splat(element(call, row, first + k + i)), lines[i], sum);
    }
    store(sums + j, sum, static_cast<int>(height));
  }
  finish_row(sums, call.c + row * call.c_stride + col, cols, adds);
}

// C of one column and one row: as fast as C is written, line by line.
void column_times_row(const Gemm& call, int64_t row, int64_t rows, int64_t col, int64_t cols, bool adds, float* line) {
  for (int64_t j = 0; j < cols; ++j) line[j] = call.b[(col + j) * (call.transpose_b ? call.b_stride : 1)];
  for (int64_t r = row; r < row + rows; ++r) {
    const vf x = splat(element(call, r, 0));
    float* c = call.c + r * call.c_stride + col;
    for_vectors(cols, [&](int64_t j, auto count) LT_INLINE_LAMBDA {
      const vf product = fma(x, load(line + j, count), vf{});
      store(c + j, adds ? load(c + j, count) + product : product, count);
    });
  }
}

// Room for packed tiles of A, of a block of `rows` rows.
int64_t tiles_floats(const Gemm& call, int64_t rows) {
  if (reads_in_place(call)) return 0;
  return round_up(round_up(min_of(kRows, rows), kTileRows) * min_of(kDepth, call.k), 16);
}

void block(const Gemm& call, int64_t row, int64_t rows, int64_t col, int64_t cols, float* scratch) {
  float* tiles = scratch;
  float* panels = scratch + tiles_floats(call, rows);
  const bool starts = call.bias != nullptr || call.beta != 0;
  if (starts || call.k == 0) start(call, row, rows, col, cols);
  for (int64_t first = 0; first < call.k; first += kDepth) {
    const int64_t depth = min_of(kDepth, call.k - first);
    const bool adds = starts || first > 0;
    if (rows == 1) {
      (call.transpose_b ? row_times_columns : row_times_rows)(call, row, col, cols, first, depth, adds, panels);
      continue;
    }
    if (call.k == 1) {
      column_times_row(call, row, rows, col, cols, adds, panels);
      continue;
    }
    pack_b(call, col, cols, first, depth, panels);
    if (reads_in_place(call)) {
      multiply_in_place(call, row, rows, col, cols, first, depth, panels, adds);
      continue;
    }
    for (int64_t top = 0; top < rows; top += kRows) {
      const int64_t height = min_of(kRows, rows - top);
      pack_a(call, row + top, height, first, depth, tiles);
      for (int64_t j = 0; j < cols; j += kTileCols) {
        const int width = static_cast<int>(min_of(kTileCols, cols - j));
        float* c = call.c + (row + top) * call.c_stride + col + j;
        for (int64_t i = 0; i < height; i += kTileRows) {
          tile<Left::kTile>(depth, tiles + i * depth, 1, kTileRows, static_cast<int>(min_of(kTileRows, height - i)),
                            panels + j * depth, c + i * call.c_stride, call.c_stride, width, adds);
        }
      }
    }
  }
}

int64_t scratch(const Gemm& call, int64_t rows, int64_t cols) {
  return tiles_floats(call, rows) + round_up(max_of(min_of(kDepth, call.k), 1) * round_up(cols, kTileCols), 16);
}

template <bool brain>
void round_row(const float* sums, const RoundedSums& to, half_bits* c, float* float_c, int64_t cols) {
  const vf alpha = splat(to.alpha), beta = splat(to.beta);
  for_vectors(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    vf sum = load(sums + i, count) * alpha;
    if (to.bias != nullptr) {
      sum += load_half<brain>(to.bias + i, count);
    } else if (to.beta != 0) {
      sum += load_half<brain>(c + i, count) * beta;
    }
    if (float_c == nullptr) {
      store_half<brain>(c + i, sum, count);
    } else if (brain) {
      store(float_c + i, widen_bf16(narrow_bf16(sum)), count);
    } else {
      store(float_c + i, widen_f16(narrow_f16(sum)), count);
    }
  });
}

void round(const float* sums, int64_t sums_stride, const RoundedSums& to, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r) {
    half_bits* c = to.c == nullptr ? nullptr : to.c + r * to.c_stride;
    float* float_c = to.float_c == nullptr ? nullptr : to.float_c + r * to.c_stride;
    (to.brain ? round_row<true> : round_row<false>)(sums + r * sums_stride, to, c, float_c, cols);
  }
}

}  // namespace

constinit const GemmTable gemm_table = {{kTileRows, kTileCols, kMostRows, kCols}, scratch, block, round};

}  // namespace lowtide::cpu::LT_ISA
