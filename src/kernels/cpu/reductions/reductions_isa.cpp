#include "kernels/cpu/half_vectors.h"
#include "kernels/cpu/reductions/reductions_table.h"
#include "kernels/cpu/vector_math.h"

namespace lowtide::cpu::LT_ISA {
namespace {

bool has_nan(const float* x, int64_t cols) {
  bool nan = false;
  for (int64_t i = 0; i < cols; ++i) nan |= x[i] != x[i];
  return nan;
}

// Squares beyond the range of floats are added up as doubles.
float length_of(const float* x, int64_t cols) {
  constexpr float kSmallest = 1e-30f, kLargest = 1e38f;
  const float total = row_sum(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    const vf value = load(x + i, count);
    return value * value;
  });
  if (total > kSmallest && total < kLargest) return __builtin_sqrtf(total);
  double exact = 0;
  for (int64_t i = 0; i < cols; ++i) exact += (double)x[i] * x[i];
  return (float)__builtin_sqrt(exact);
}

float log_sum_exp(const float* x, int64_t cols) {
  const float top = row_max(x, cols, 1.0f);
  if (__builtin_isinf(top)) return has_nan(x, cols) ? kNaN : top;
  const float total = row_sum(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    return keep_lanes(exp_flushed(load(x + i, count) - top), count, 0);
  });
  return top + __builtin_logf(total);
}

template <RowReduce op>
void reduce_rows(const float* x, float* out, int64_t rows, int64_t cols) {
  for (; rows > 0; --rows, x += cols, ++out) {
    if constexpr (op == RowReduce::kMax || op == RowReduce::kMin) {
      const float sign = op == RowReduce::kMax ? 1.0f : -1.0f;
      // row_max drops NaN; the sum of x * 0 is NaN exactly if some element is NaN or infinite.
      const float top = sign * row_max(x, cols, sign);
      const float doubt =
          row_sum(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA { return load(x + i, count) * 0.0f; });
      *out = doubt != doubt && has_nan(x, cols) ? kNaN : top;
    } else if constexpr (op == RowReduce::kProd) {
      vf product = splat(1.0f);
      for_vectors(cols, [&](int64_t i, auto count)
                            LT_INLINE_LAMBDA { product *= keep_lanes(load(x + i, count), count, 1.0f); });
      for (int half = kLanes / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) product[i] = product[i] * product[i + half];
      *out = product[0];
    } else if constexpr (op == RowReduce::kL2) {
      *out = length_of(x, cols);
    } else if constexpr (op == RowReduce::kLogSumExp) {
      *out = log_sum_exp(x, cols);
    } else {
      const float total = row_sum(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA { return load(x + i, count); });
      *out = op == RowReduce::kMean ? total / static_cast<float>(cols) : total;
    }
  }
}

// row(r) points to row r, stored as S.
template <class S, class Row>
LT_INLINE void add_up(Row row, float* out, int64_t rows, int64_t cols, bool add) {
  const auto panel = [&](int64_t c, auto width, auto count) LT_INLINE_LAMBDA {
    vf sum[width];
    for (int k = 0; k < width; ++k) sum[k] = vf{};
    for (int64_t r = 0; r < rows; ++r) {
      for (int k = 0; k < width; ++k) sum[k] += S::load(row(r) + c + k * kLanes, count);
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

template <class S>
void sum_rows(const void* x, int64_t stride, float* out, int64_t rows, int64_t cols, bool add) {
  const auto* from = (const typename S::Number*)x;
  add_up<S>([&](int64_t r) LT_INLINE_LAMBDA { return from + r * stride; }, out, rows, cols, add);
}

void gather_sum(const float* x, int64_t stride, const int32_t* rows_at, int64_t rows, float* out, int64_t cols,
                bool add) {
  add_up<Floats>([&](int64_t r) LT_INLINE_LAMBDA { return x + rows_at[r] * stride; }, out, rows, cols, add);
}

}  // namespace

constinit const ReductionsTable reductions_table = {
    {reduce_rows<RowReduce::kSum>, reduce_rows<RowReduce::kMean>, reduce_rows<RowReduce::kMax>,
     reduce_rows<RowReduce::kMin>, reduce_rows<RowReduce::kProd>, reduce_rows<RowReduce::kL2>,
     reduce_rows<RowReduce::kLogSumExp>},
    {sum_rows<Floats>, sum_rows<Halves<true>>, sum_rows<Halves<false>>},
    gather_sum};

}  // namespace lowtide::cpu::LT_ISA
