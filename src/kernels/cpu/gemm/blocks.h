// How C is cut into the blocks that threads take.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lowtide::cpu {

inline int64_t rounded_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Whether a tile's rows, so many bytes apart, meet in a few sets of L1: those of a distance that is a multiple of 4 KiB
// (64 sets of 64-byte lines, on every x86 so far) do, and where there are more of them than L1 has ways (8 to 12), each
// panel of B reads them from L2 again. Such rows are better packed.
constexpr bool rows_meet_in_cache(int64_t rows, int64_t bytes_apart) { return rows > 8 && bytes_apart % 4096 == 0; }

// Units are whole register tiles: a cut elsewhere would multiply padding.
struct BlockLimits {
  int64_t row_unit, col_unit;
  int64_t most_rows, most_cols;  // multiples of the units
};

// `down` times `right` blocks of rows x cols, the last of each less.
struct Blocks {
  int64_t down = 0, right = 0, rows = 0, cols = 0;

  Blocks() = default;
  // Two blocks a thread or more, if there are so many, and those that cost least: each block multiplies, and packs its
  // rows of A and its columns of B; the slowest thread ends the product.
  Blocks(int64_t m, int64_t n, int64_t batches, int threads, const BlockLimits& limits) {
    constexpr int64_t kPacked = 24;  // columns that are multiplied in the time in which a number is packed
    const int64_t wanted = (2 * threads + batches - 1) / batches;
    const int64_t fewest = (n + limits.most_cols - 1) / limits.most_cols;
    int64_t least = 0;
    for (int64_t across = fewest; across <= 4 * fewest; ++across) {
      const int64_t width = rounded_up((n + across - 1) / across, limits.col_unit);
      const int64_t blocks = (n + width - 1) / width;
      const int64_t cuts = std::max((m + limits.most_rows - 1) / limits.most_rows, (wanted + blocks - 1) / blocks);
      const int64_t height = rounded_up((m + cuts - 1) / cuts, limits.row_unit);
      const int64_t turns = ((m + height - 1) / height * blocks * batches + threads - 1) / threads;
      const int64_t cost = turns * (height * width + kPacked * (height + width));
      if (least != 0 && cost >= least) continue;
      least = cost;
      right = blocks;
      cols = width;
      rows = height;
      down = (m + height - 1) / height;
    }
  }
};

}  // namespace lowtide::cpu
