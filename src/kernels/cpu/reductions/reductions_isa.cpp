#include "kernels/cpu/reductions/reductions_table.h"
#include "kernels/cpu/vector_math.h"

namespace lowtide::cpu::LT_ISA {
namespace {

template <RowReduce op>
void reduce_rows(const float* x, float* out, int64_t rows, int64_t cols) {
  for (; rows > 0; --rows, x += cols, ++out) {
    if constexpr (op == RowReduce::kMax || op == RowReduce::kMin) {
      const float sign = op == RowReduce::kMax ? 1.0f : -1.0f;
      // row_max drops NaN; the sum of x * 0 is NaN exactly if some element is NaN or infinite.
      const float top = sign * row_max(x, cols, sign);
      const float doubt =
          row_sum(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA { return load(x + i, count) * 0.0f; });
      bool nan = false;
      if (doubt != doubt) {
        for (int64_t i = 0; i < cols; ++i) nan |= x[i] != x[i];
      }
      *out = nan ? kNaN : top;
    } else if constexpr (op == RowReduce::kProd) {
      vf product = splat(1.0f);
      for_vectors(cols, [&](int64_t i, auto count)
                            LT_INLINE_LAMBDA { product *= keep_lanes(load(x + i, count), count, 1.0f); });
      for (int half = kLanes / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) product[i] = product[i] * product[i + half];
      *out = product[0];
    } else {
      const float total = row_sum(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA { return load(x + i, count); });
      *out = op == RowReduce::kMean ? total / static_cast<float>(cols) : total;
    }
  }
}

// row(r) points to row r.
template <class Row>
LT_INLINE void add_up(Row row, float* out, int64_t rows, int64_t cols, bool add) {
  const auto panel = [&](int64_t c, auto width, auto count) LT_INLINE_LAMBDA {
    vf sum[width];
    for (int k = 0; k < width; ++k) sum[k] = vf{};
    for (int64_t r = 0; r < rows; ++r) {
      for (int k = 0; k < width; ++k) sum[k] += load(row(r) + c + k * kLanes, count);
    }
    for (int k = 0; k < width; ++k) {
      float* to = out + c + k * kLanes;
      store(to, add ? load(to, count) + sum[k] : sum[k], count);
    }
  };
  struct Four {
    constexpr operator int() const { return 4; }
  };
  struct One {
    constexpr operator int() const { return 1; }
  };
  int64_t c = 0;
  for (; c + 4 * kLanes <= cols; c += 4 * kLanes) panel(c, Four{}, Full{});
  for (; c + kLanes <= cols; c += kLanes) panel(c, One{}, Full{});
  if (c < cols) panel(c, One{}, static_cast<int>(cols - c));
}

void sum_rows(const float* x, int64_t stride, float* out, int64_t rows, int64_t cols, bool add) {
  add_up([&](int64_t r) LT_INLINE_LAMBDA { return x + r * stride; }, out, rows, cols, add);
}

void gather_sum(const float* x, int64_t stride, const int32_t* rows_at, int64_t rows, float* out, int64_t cols,
                bool add) {
  add_up([&](int64_t r) LT_INLINE_LAMBDA { return x + rows_at[r] * stride; }, out, rows, cols, add);
}

}  // namespace

constinit const ReductionsTable reductions_table = {
    {reduce_rows<RowReduce::kSum>, reduce_rows<RowReduce::kMean>, reduce_rows<RowReduce::kMax>,
     reduce_rows<RowReduce::kMin>, reduce_rows<RowReduce::kProd>},
    sum_rows,
    gather_sum};

}  // namespace lowtide::cpu::LT_ISA
