#include "kernels/cpu/attention/attention_backward.h"
#include "kernels/cpu/half_vectors.h"
#include "kernels/cpu/micro_kernel.h"

namespace lowtide::cpu::LT_ISA {
namespace {

// A right operand, as packed for `depth` rows at most.
struct FloatPanels {
  FloatPanels(int64_t depth, int64_t cols, Pieces& pieces)
      : data(pieces.take(round_up(cols, kTileCols) * depth)), stride(depth * kTileCols) {}
  float* data;
  int64_t stride;
};

// A left operand in place: element (i, k) is data[i * row + k * step].
struct FloatLeft {
  const float* data;
  int64_t row, step;
};

struct FloatProducts {
  using Panels = FloatPanels;
  static constexpr int64_t kQueries = LT_LANES == 16 ? 56 : 48;  // whole tiles
  static constexpr int64_t kRows = 1, kCols = kTileCols;
  static constexpr bool kScalesLeft = true;

  static void multiply(const FloatLeft& left, const FloatPanels& right, int64_t rows, int64_t depth, int64_t cols,
                       float* c, int64_t c_row, bool add) {
    LT_ISA::multiply(rows, cols, depth, left.data, left.row, left.step, right.data, right.stride, c, c_row, add);
  }
};

int64_t left_row(int64_t depth) { return round_up(depth, 16) + 16; }

// What reads scores and keeps rows of the queries, for operands of any kind.
struct FloatRoom {
  FloatRoom(const AttentionOptions& options, Pieces& pieces)
      : rows(pieces.take(FloatProducts::kQueries * left_row(max_of(options.head_dim, options.value_dim)))) {}
  FloatLeft left_of_scores(const float* scores, int64_t, int64_t) const { return {scores, kScoreRow, 1}; }
  FloatLeft transposed_left(const float* scores, int64_t, int64_t) const { return {scores, 1, kScoreRow}; }
  float* rows;
};

struct FloatArithmetic : FloatProducts, Floats {
  static constexpr bool kDirect = true;
  struct Room : FloatRoom {
    using FloatRoom::FloatRoom;
    FloatLeft left(const float* from, int64_t stride, int64_t count, int64_t depth, float scale) const {
      copy_scaled(from, stride, count, depth, scale, rows, left_row(depth));
      return {rows, left_row(depth), 1};
    }
    void pack_columns(const float* from, int64_t stride, int64_t depth, int64_t cols, const FloatPanels& to) const {
      pack_transposed(from, stride, depth, cols, to.data, to.stride);
    }
    void pack_rows(const float* from, int64_t stride, int64_t depth, int64_t cols, const FloatPanels& to) const {
      pack(from, stride, depth, cols, to.data, to.stride);
    }
  };
};

// bf16 (brain) and f16: widened where they are packed.
template <bool brain>
struct WidenedArithmetic : FloatProducts, Halves<brain> {
  using Halves<brain>::load;
  static constexpr bool kDirect = false;
  static void widen(const half_bits* from, int64_t stride, int64_t lines, int64_t length, float scale, float* to,
                    int64_t to_stride) {
    for (int64_t i = 0; i < lines; ++i) {
      for_vectors(length, [&](int64_t j, auto count) LT_INLINE_LAMBDA {
        LT_ISA::store(to + i * to_stride + j, load(from + i * stride + j, count) * scale, count);
      });
    }
  }

  struct Room : FloatRoom {
    Room(const AttentionOptions& options, Pieces& pieces)
        : FloatRoom(options, pieces), lines(pieces.take(kKeys * max_of(options.head_dim, options.value_dim))) {}
    FloatLeft left(const half_bits* from, int64_t stride, int64_t count, int64_t depth, float scale) const {
      widen(from, stride, count, depth, scale, rows, left_row(depth));
      return {rows, left_row(depth), 1};
    }
    void pack_columns(const half_bits* from, int64_t stride, int64_t depth, int64_t cols, const FloatPanels& to) const {
      widen(from, stride, cols, depth, 1, lines, depth);
      pack_transposed(lines, depth, depth, cols, to.data, to.stride);
    }
    void pack_rows(const half_bits* from, int64_t stride, int64_t depth, int64_t cols, const FloatPanels& to) const {
      widen(from, stride, depth, cols, 1, lines, cols);
      pack(lines, cols, depth, cols, to.data, to.stride);
    }
    float* lines;
  };
};

}  // namespace

constinit const FloatAttention attention_table = attention_by<FloatArithmetic>;
constinit const HalfAttention bf16_attention_table = attention_by<WidenedArithmetic<true>>;
constinit const HalfAttention f16_attention_table = attention_by<WidenedArithmetic<false>>;

}  // namespace lowtide::cpu::LT_ISA
