#include "kernels/cpu/gemm/half_gemm.h"

#include "kernels/cpu/copy/copy_table.h"
#include "kernels/cpu/gemm/bf16_gemm_table.h"
#include "kernels/cpu/gemm/gemm_table.h"
#include "kernels/task_slots.h"

namespace lowtide::cpu {

namespace {

// Of bf16 panels: a tile's part of A and of B fill L1.
constexpr int64_t kPackedDepth = 1024;

// How much of C one task computes, and the room it needs meanwhile, in floats.
struct HalfBlocks {
  explicit HalfBlocks(const HalfGemm& call) : bf16(call.dtype == DType::kBF16 ? bf16_gemm_table() : nullptr) {
    // Sums of many rows wait where a packing of B does not hold the whole depth: they stay in L2.
    const bool is_short = bf16 != nullptr && call.k <= kPackedDepth;
    const int64_t most_cols = 512, most_rows = is_short ? 1024 : 512;
    const BlockLimits& tiles = gemm_table().limits;
    const int64_t row_unit = bf16 != nullptr ? bf16->tile_rows : tiles.row_unit;
    const int64_t col_unit = bf16 != nullptr ? bf16->tile_cols : tiles.col_unit;
    cut = Blocks(call.m, call.n, call.batches, parallel_threads(),
                 {row_unit, col_unit, rounded_up(most_rows, row_unit), most_cols});

    // Room for the largest blocks, which no number of threads changes.
    const int64_t widest = rounded_up(std::min(call.n, most_cols), std::max<int64_t>(col_unit, 16));
    const int64_t tallest = rounded_up(std::min(call.m, most_rows), row_unit);
    if (bf16 != nullptr) {
      const int64_t depth = rounded_up(std::min(call.k, kPackedDepth), kPackedBf16Depth);
      takes_rows = bf16->multiply_rows != nullptr && !call.transpose_a && call.float_a == nullptr && call.k % 2 == 0 &&
                   !rows_meet_in_cache(bf16->tile_rows, call.a_stride * 2);
      // What lies in columns is read in runs of so many numbers, each from another page.
      packed_rows = std::min(rounded_up(tallest, bf16->tile_rows), bf16->packed_rows * (call.transpose_a ? 4 : 1));
      sums = (is_short ? bf16->packed_rows : tallest) * widest;
      a = packed_rows * depth / 2;
      b = widest * depth / 2;
      narrowed = std::max(bf16->tile_rows, bf16->tile_cols) * depth / 2;
    } else {
      const int64_t depth = std::min(call.k, kGemmDepth);
      sums = tallest * widest;
      a = rounded_up(tallest * depth, 16);
      b = widest * depth;
      Gemm widened;
      widened.m = tallest;
      widened.n = widest;
      widened.k = depth;
      widened.transpose_a = call.transpose_a;
      inner = gemm_table().scratch(widened, tallest, widest);
    }
  }

  int64_t floats() const { return sums + a + b + inner + narrowed; }

  const Bf16GemmTable* bf16;  // null: operands are widened for packed_gemm
  Blocks cut;
  bool takes_rows = false;  // of A, as they are stored
  int64_t packed_rows = 0;  // of A at a time
  int64_t sums, a, b, inner = 0, narrowed = 0;
};

// One block of C.
class HalfBlock {
 public:
  HalfBlock(const HalfGemm& call, const HalfBlocks& blocks, int64_t row, int64_t col, float* own)
      : call_(call),
        blocks_(blocks),
        row_(row),
        col_(col),
        rows_(std::min(blocks.cut.rows, call.m - row)),
        cols_(std::min(blocks.cut.cols, call.n - col)),
        brain_(call.dtype == DType::kBF16),
        sums_(own),
        a_(sums_ + blocks.sums),
        b_(a_ + blocks.a),
        inner_(b_ + blocks.b),
        narrowed_(reinterpret_cast<uint16_t*>(inner_ + blocks.inner)) {}

  void run() {
    if (blocks_.bf16 != nullptr) {
      multiply_bf16(*blocks_.bf16);
    } else {
      multiply_widened();
    }
  }

 private:
  template <class Number>
  const Number* a_from(const Number* a, int64_t row, int64_t k) const {
    return call_.transpose_a ? a + k * call_.a_stride + row : a + row * call_.a_stride + k;
  }
  template <class Number>
  const Number* b_from(const Number* b, int64_t col, int64_t k) const {
    return call_.transpose_b ? b + col * call_.b_stride + k : b + k * call_.b_stride + col;
  }

  // `lines` runs of `length` floats, `stride` apart, rounded side by side.
  const uint16_t* narrow(const float* from, int64_t stride, int64_t lines, int64_t length) const {
    const CopyTable& table = copy_table();
    const auto run = brain_ ? table.f32_to_bf16 : table.f32_to_f16;
    for (int64_t i = 0; i < lines; ++i) run(from + i * stride, narrowed_ + i * length, length);
    return narrowed_;
  }

  // What is stored in f32 is rounded a tile at a time, and packed from the cache.
  void pack_a(const Bf16GemmTable& table, int64_t row, int64_t rows, int64_t k, int64_t depth, int64_t padded,
              uint16_t* tiles) const {
    const bool flipped = call_.transpose_a;
    if (call_.float_a == nullptr)
      return table.pack_a(a_from(call_.a, row, k), call_.a_stride, flipped, rows, depth, tiles);
    for (int64_t i = 0; i < rows; i += table.tile_rows) {
      const int64_t height = std::min(table.tile_rows, rows - i), length = flipped ? height : depth;
      const uint16_t* from =
          narrow(a_from(call_.float_a, row + i, k), call_.a_stride, flipped ? depth : height, length);
      table.pack_a(from, length, flipped, height, depth, tiles + i * padded);
    }
  }
  void pack_b(const Bf16GemmTable& table, int64_t k, int64_t depth, int64_t padded, uint16_t* panels) const {
    const bool flipped = call_.transpose_b;
    if (call_.float_b == nullptr)
      return table.pack_b(b_from(call_.b, col_, k), call_.b_stride, flipped, depth, cols_, panels);
    for (int64_t j = 0; j < cols_; j += table.tile_cols) {
      const int64_t width = std::min(table.tile_cols, cols_ - j), length = flipped ? depth : width;
      const uint16_t* from =
          narrow(b_from(call_.float_b, col_ + j, k), call_.b_stride, flipped ? width : depth, length);
      table.pack_b(from, length, flipped, depth, width, panels + j * padded);
    }
  }

  void multiply_bf16(const Bf16GemmTable& table) {
    auto *tiles = reinterpret_cast<uint16_t*>(a_), *panels = reinterpret_cast<uint16_t*>(b_);
    const int64_t width = rounded_up(cols_, table.tile_cols);
    const bool is_short = call_.k <= kPackedDepth;
    for (int64_t first = 0; first < call_.k; first += kPackedDepth) {
      const int64_t depth = std::min(kPackedDepth, call_.k - first), padded = rounded_up(depth, kPackedBf16Depth);
      pack_b(table, first, depth, padded, panels);
      for (int64_t top = 0; top < rows_; top += blocks_.packed_rows) {
        const int64_t packed = std::min(blocks_.packed_rows, rows_ - top);
        if (!blocks_.takes_rows) pack_a(table, row_ + top, packed, first, depth, padded, tiles);
        for (int64_t row = top; row < top + packed; row += table.packed_rows) {
          const int64_t height = std::min(table.packed_rows, top + packed - row);
          float* sums = is_short ? sums_ : sums_ + row * width;
          if (first == 0 && call_.adds) {
            for_tiles(table, sums, row, height, width, [&](float* tile, const auto&... at) { take(tile, at...); });
          }
          multiply_rows(table, tiles + (row - top) * padded, panels, row, height, first, depth, width, sums);
        }
      }
    }
  }

  // The block's rows [row, row + height), whose tiles those are, where they are packed.
  void multiply_rows(const Bf16GemmTable& table, const uint16_t* tiles, const uint16_t* panels, int64_t row,
                     int64_t height, int64_t first, int64_t depth, int64_t width, float* sums) const {
    const bool is_last = first + kPackedDepth >= call_.k;
    const auto after = [&](const float* tile, int64_t i, int64_t j) {
      const int64_t rows = std::min(table.tile_rows, height - i);
      fetch(row + i, rows, j + table.tile_cols);
      hand_over(tile, table.tile_cols, row + i, rows, j, std::min(table.tile_cols, cols_ - j));
    };
    const TileReader reader = {[](const void* context, const float* tile, int64_t i, int64_t j) {
                                 (*static_cast<const decltype(after)*>(context))(tile, i, j);
                               },
                               &after};
    const bool adds = first > 0 || call_.adds;
    const TileReader* then = is_last ? &reader : nullptr;
    if (blocks_.takes_rows) {
      table.multiply_rows(a_from(call_.a, row_ + row, first), call_.a_stride, panels, height, depth, width, sums, adds,
                          then);
    } else {
      table.multiply(tiles, panels, rounded_up(height, table.tile_rows), rounded_up(depth, kPackedBf16Depth), width,
                     sums, adds, then);
    }
  }

  // body(tile, its row stride, first row, rows, first column, columns)
  template <class Body>
  void for_tiles(const Bf16GemmTable& table, float* sums, int64_t top, int64_t rows, int64_t width, Body body) const {
    for (int64_t i = 0; i < rows; i += table.tile_rows) {
      for (int64_t j = 0; j < cols_; j += table.tile_cols) {
        body(sums + i * width + j * table.tile_rows, table.tile_cols, top + i, std::min(table.tile_rows, rows - i), j,
             std::min(table.tile_cols, cols_ - j));
      }
    }
  }

  void multiply_widened() {
    Gemm gemm;
    gemm.m = rows_;
    gemm.n = cols_;
    gemm.transpose_a = call_.transpose_a;
    gemm.transpose_b = call_.transpose_b;
    gemm.a = a_;
    gemm.b = b_;
    gemm.c = sums_;
    gemm.c_stride = cols_;
    if (call_.adds) take(sums_, cols_, 0, rows_, 0, cols_);
    for (int64_t first = 0; first < call_.k; first += kGemmDepth) {
      const int64_t depth = std::min(kGemmDepth, call_.k - first);
      gemm.k = depth;
      gemm.a_stride = call_.transpose_a ? rows_ : depth;
      gemm.b_stride = call_.transpose_b ? depth : cols_;
      gemm.beta = first > 0 || call_.adds ? 1.0f : 0.0f;
      const int64_t a_lines = call_.transpose_a ? depth : rows_, b_lines = call_.transpose_b ? cols_ : depth;
      if (call_.float_a != nullptr)
        round(a_from(call_.float_a, row_, first), call_.a_stride, a_lines, gemm.a_stride, a_);
      else
        widen(a_from(call_.a, row_, first), call_.a_stride, a_lines, gemm.a_stride, a_);
      if (call_.float_b != nullptr)
        round(b_from(call_.float_b, col_, first), call_.b_stride, b_lines, gemm.b_stride, b_);
      else
        widen(b_from(call_.b, col_, first), call_.b_stride, b_lines, gemm.b_stride, b_);
      gemm_table().block(gemm, 0, rows_, 0, cols_, inner_);
    }
    hand_over(sums_, cols_, 0, rows_, 0, cols_);
  }

  // `lines` runs of `length` numbers, `stride` apart, to floats side by side.
  void widen(const uint16_t* from, int64_t stride, int64_t lines, int64_t length, float* to) const {
    const CopyTable& table = copy_table();
    const auto run = brain_ ? table.bf16_to_f32 : table.f16_to_f32;
    for (int64_t i = 0; i < lines; ++i) run(from + i * stride, to + i * length, length);
  }

  // The same for lines of f32, rounded.
  void round(const float* from, int64_t stride, int64_t lines, int64_t length, float* to) const {
    const CopyTable& table = copy_table();
    const auto narrow_run = brain_ ? table.f32_to_bf16 : table.f32_to_f16;
    const auto widen_run = brain_ ? table.bf16_to_f32 : table.f16_to_f32;
    constexpr int64_t kPart = 512;
    uint16_t part[kPart];
    for (int64_t i = 0; i < lines; ++i) {
      for (int64_t first = 0; first < length; first += kPart) {
        const int64_t n = std::min(kPart, length - first);
        narrow_run(from + i * stride + first, part, n);
        widen_run(part, to + i * length + first, n);
      }
    }
  }

  float* kept(int64_t row, int64_t col) const { return call_.sums + (row_ + row) * call_.n + col_ + col; }

  // What was summed before, from (row, col) of this block on.
  void take(float* sums, int64_t stride, int64_t row, int64_t rows, int64_t col, int64_t cols) const {
    for (int64_t r = 0; r < rows; ++r) std::copy_n(kept(row + r, col), cols, sums + r * stride);
  }
  // C is touched only where a tile is whole: its memory comes while the tile before is computed.
  void fetch(int64_t row, int64_t rows, int64_t col) const {
    if (col >= cols_) return;
    for (int64_t r = row_ + row; r < row_ + row + rows; ++r) {
      const int64_t at = r * call_.c_stride + col_ + col;
      if (call_.c != nullptr) __builtin_prefetch(call_.c + at, 1);
      if (call_.float_c != nullptr) {
        __builtin_prefetch(call_.float_c + at, 1);
        __builtin_prefetch(call_.float_c + at + 16, 1);
      }
    }
  }
  // Into C, or where sums are kept.
  void hand_over(const float* sums, int64_t stride, int64_t row, int64_t rows, int64_t col, int64_t cols) const {
    if (call_.sums != nullptr) {
      for (int64_t r = 0; r < rows; ++r) std::copy_n(sums + r * stride, cols, kept(row + r, col));
      return;
    }
    const uint16_t* bias = call_.bias == nullptr ? nullptr : call_.bias + col_ + col;
    const int64_t at = (row_ + row) * call_.c_stride + col_ + col;
    uint16_t* c = call_.c == nullptr ? nullptr : call_.c + at;
    float* float_c = call_.float_c == nullptr ? nullptr : call_.float_c + at;
    if (blocks_.bf16 != nullptr && c != nullptr && bias == nullptr && call_.alpha == 1 && call_.beta == 0)
      return blocks_.bf16->round_tile(sums, rows, cols, c, call_.c_stride);
    gemm_table().round(sums, stride, {brain_, call_.alpha, call_.beta, bias, c, call_.c_stride, float_c}, rows, cols);
  }

  const HalfGemm& call_;
  const HalfBlocks& blocks_;
  const int64_t row_, col_, rows_, cols_;
  const bool brain_;
  float *sums_, *a_, *b_, *inner_;
  uint16_t* narrowed_;
};

}  // namespace

int64_t half_gemm_scratch_bytes(const HalfGemm& call, int threads) {
  return HalfBlocks(call).floats() * static_cast<int64_t>(sizeof(float)) * threads;
}

void half_gemm(const HalfGemm& call, void* scratch, int64_t scratch_bytes) {
  if (call.m == 0 || call.n == 0) return;
  const HalfBlocks blocks(call);
  const Blocks& cut = blocks.cut;
  const bool small = 2.0 * call.m * call.n * call.k * call.batches < 4e6;
  run_tasks(call.batches * cut.down * cut.right, blocks.floats(), scratch, scratch_bytes, small,
            [&](int64_t task, float* own) {
              const int64_t row = task % cut.down * cut.rows;
              const int64_t col = task / cut.down % cut.right * cut.cols;
              const int64_t batch = task / (cut.down * cut.right);
              HalfGemm one = call;
              const auto move = [](int64_t by, auto& half, auto& full) {
                if (half != nullptr) half += by;
                if (full != nullptr) full += by;
              };
              move(batch * call.a_batch, one.a, one.float_a);
              move(batch * call.b_batch, one.b, one.float_b);
              move(batch * call.c_batch, one.c, one.float_c);
              HalfBlock(one, blocks, row, col, own).run();
            });
}

}  // namespace lowtide::cpu
