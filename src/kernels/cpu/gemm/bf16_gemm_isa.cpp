#include "kernels/cpu/bf16_tiles.h"
#include "kernels/cpu/gemm/bf16_gemm_table.h"

namespace lowtide::cpu::LT_ISA {
namespace {

static_assert(kPackedBf16Depth == kBf16Depth);
constexpr int64_t kPackedRows = kBf16Rows * (64 / kBf16Rows);

void pack_b(const half_bits* b, int64_t stride, bool transposed, int64_t depth, int64_t cols, half_bits* panels) {
  pack_bf16_b(b, stride, transposed, depth, cols, panels, (depth + kBf16Depth - 1) / kBf16Depth * kBf16Depth);
}

void multiply(const half_bits* tiles, const half_bits* panels, int64_t rows, int64_t depth, int64_t cols, float* sums,
              bool add, const TileReader* reader) {
  multiply_bf16(tiles, panels, depth, rows, depth, cols, sums, {kBf16Cols, cols, kBf16Rows}, add,
                [&](const float* tile, int64_t row, int64_t col) LT_INLINE_LAMBDA {
                  if (reader != nullptr) reader->read(reader->context, tile, row, col);
                });
}

}  // namespace

constinit const Bf16GemmTable bf16_gemm_table = {kBf16Rows, kBf16Cols, kPackedRows, pack_bf16_a, pack_b, multiply};

}  // namespace lowtide::cpu::LT_ISA
