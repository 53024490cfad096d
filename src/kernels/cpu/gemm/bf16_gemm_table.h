// What bf16_gemm_isa.cpp hands to half_gemm.cpp: bf16 operands packed as the instructions read them, and their product.
// Packed operands lie in tiles of tile_rows rows or tile_cols columns and of kPackedBf16Depth numbers along k, padded
// with zeros; sums in tiles of tile_rows x tile_cols, those of one tile's rows one after another.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace lowtide::cpu {

constexpr int64_t kPackedBf16Depth = 32;

// Called with each tile of sums (tile_cols to a row) when it is whole.
struct TileReader {
  void (*read)(const void* context, const float* tile, int64_t row, int64_t col);
  const void* context;
};

struct Bf16GemmTable {
  int64_t tile_rows, tile_cols;
  int64_t packed_rows;  // of A at a time: whole tiles

  // Row i of A begins at a + i * stride, or column i where it is transposed.
  void (*pack_a)(const uint16_t* a, int64_t stride, bool transposed, int64_t rows, int64_t depth, uint16_t* tiles);
  // Row k of B begins at b + k * stride, or column k where it is transposed.
  void (*pack_b)(const uint16_t* b, int64_t stride, bool transposed, int64_t depth, int64_t cols, uint16_t* panels);
  // sums = or += the product, of whole tiles. reader: null where nobody reads them yet.
  void (*multiply)(const uint16_t* tiles, const uint16_t* panels, int64_t rows, int64_t depth, int64_t cols,
                   float* sums, bool add, const TileReader* reader);
  // The same of an even depth and any rows where those of A lie as they are stored, `stride` apart; null: A has to be
  // packed.
  void (*multiply_rows)(const uint16_t* a, int64_t stride, const uint16_t* panels, int64_t rows, int64_t depth,
                        int64_t cols, float* sums, bool add, const TileReader* reader);
  // Of a tile of sums, rounded as GemmTable::round does it.
  void (*round_tile)(const float* tile, int64_t rows, int64_t cols, uint16_t* c, int64_t c_stride);
};

LT_BF16_TABLE(Bf16GemmTable, bf16_gemm_table)

}  // namespace lowtide::cpu
