// Attention whose products multiply bf16 as it is: weights and gradients of scores are rounded to bf16 for them.
#include "kernels/cpu/attention/attention_backward.h"
#include "kernels/cpu/bf16_tiles.h"

namespace lowtide::cpu::LT_ISA {
namespace {

constexpr int64_t kTileQueries = kBf16Rows * (64 / kBf16Rows);
constexpr int64_t kNarrowRow = kKeys + kBf16Depth;  // of narrowed scores, in numbers; zeros follow the last one

int64_t halves(int64_t numbers) { return numbers / 2; }  // in floats of scratch

struct BrainPanels {
  BrainPanels(int64_t most_depth, int64_t cols, Pieces& pieces)
      : depth(round_up(most_depth, kBf16Depth)),
        data((half_bits*)pieces.take(halves(round_up(cols, kBf16Cols) * depth))) {}
  int64_t depth;
  half_bits* data;
};

struct BrainArithmetic : Halves<true> {
  using Panels = BrainPanels;
  static constexpr int64_t kQueries = kTileQueries, kRows = kBf16Rows, kCols = kBf16Cols;
  static constexpr bool kDirect = false, kScalesLeft = false;

  static void multiply(const half_bits* left, const BrainPanels& right, int64_t rows, int64_t depth, int64_t cols,
                       float* c, int64_t c_row, bool add) {
    multiply_bf16(left, right.data, right.depth, round_up(rows, kBf16Rows), round_up(depth, kBf16Depth),
                  round_up(cols, kBf16Cols), c, row_major(c_row), add, [](const float*, int64_t, int64_t) {});
  }

  struct Room {
    Room(const AttentionOptions& options, Pieces& pieces)
        : narrowed((half_bits*)pieces.take(halves(kQueries * kNarrowRow))),
          tiles((half_bits*)pieces.take(halves(most_tiles(options)))) {}
    // Of queries by head size, queries by keys, keys by queries.
    static int64_t most_tiles(const AttentionOptions& options) {
      const int64_t dim = round_up(max_of(options.head_dim, options.value_dim), kBf16Depth);
      return max_of(kQueries * max_of(dim, kKeys), round_up(kKeys, kBf16Rows) * round_up(kQueries, kBf16Depth));
    }

    const half_bits* left(const half_bits* from, int64_t stride, int64_t rows, int64_t depth, float) const {
      pack_bf16_a(from, stride, false, rows, depth, tiles);
      return tiles;
    }
    const half_bits* left_of_scores(const float* scores, int64_t queries, int64_t keys) const {
      narrow(scores, queries, keys);
      pack_bf16_a(narrowed, kNarrowRow, false, queries, keys, tiles);
      return tiles;
    }
    const half_bits* transposed_left(const float* scores, int64_t queries, int64_t keys) const {
      narrow(scores, queries, keys);
      pack_bf16_a(narrowed, kNarrowRow, true, keys, queries, tiles);
      return tiles;
    }
    void narrow(const float* scores, int64_t queries, int64_t keys) const {
      for (int64_t r = 0; r < queries; ++r) {
        for_vectors(keys, [&](int64_t j, auto count) LT_INLINE_LAMBDA {
          store(narrowed + r * kNarrowRow + j, LT_ISA::load(scores + r * kScoreRow + j, count), count);
        });
      }
    }

    void pack_columns(const half_bits* from, int64_t stride, int64_t depth, int64_t cols, const BrainPanels& to) const {
      pack_bf16_b(from, stride, true, depth, cols, to.data, to.depth);
    }
    void pack_rows(const half_bits* from, int64_t stride, int64_t depth, int64_t cols, const BrainPanels& to) const {
      pack_bf16_b(from, stride, false, depth, cols, to.data, to.depth);
    }
    half_bits *narrowed, *tiles;
  };
};

}  // namespace

constinit const HalfAttention bf16_attention_in_tiles = attention_by<BrainArithmetic>;

}  // namespace lowtide::cpu::LT_ISA
