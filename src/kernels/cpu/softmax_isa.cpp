#include "kernels/cpu/softmax_table.h"
#include "kernels/cpu/vector_math.h"

namespace lowtide::cpu::LT_ISA {
namespace {

LT_INLINE float row_max(const float* x, int64_t n, float scale) {
  const vf s = splat(scale);
  vf m[4] = {splat(-kInfinity), splat(-kInfinity), splat(-kInfinity), splat(-kInfinity)};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int k = 0; k < 4; ++k) m[k] = vmax(load(x + i + k * kLanes) * s, m[k]);
  }
  for (; i + kLanes <= n; i += kLanes) m[0] = vmax(load(x + i) * s, m[0]);
  if (i < n) {
    const int count = static_cast<int>(n - i);
    m[0] = vmax(keep_lanes(load(x + i, count) * s, count, -kInfinity), m[0]);
  }
  return lane_max(vmax(vmax(m[0], m[1]), vmax(m[2], m[3])));
}

void softmax_rows(const float* x, float* y, int64_t rows, int64_t cols, float scale) {
  const vf s = splat(scale);
  for (; rows > 0; --rows, x += cols, y += cols) {
    const vf top = splat(-row_max(x, cols, scale));
    const float total = row_sum(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
      const vf e = keep_lanes(exp_flushed(fma(load(x + i, count), s, top)), count, 0);
      store(y + i, e, count);
      return e;
    });
    const vf share = splat(1.0f / total);
    for_vectors(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA { store(y + i, load(y + i, count) * share, count); });
  }
}

void log_softmax_rows(const float* x, float* y, int64_t rows, int64_t cols, float) {
  for (; rows > 0; --rows, x += cols, y += cols) {
    const float top = row_max(x, cols, 1);
    const float total = row_sum(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
      return keep_lanes(exp_flushed(load(x + i, count) - top), count, 0);
    });
    const vf log_total = splat(__builtin_logf(total));
    for_vectors(cols, [&](int64_t i, auto count)
                          LT_INLINE_LAMBDA { store(y + i, (load(x + i, count) - top) - log_total, count); });
  }
}

void softmax_grad_rows(const float* y, const float* dy, float* dx, int64_t rows, int64_t cols, float scale) {
  for (; rows > 0; --rows, y += cols, dy += cols, dx += cols) {
    const vf dot = splat(row_sum(
        cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA { return load(y + i, count) * load(dy + i, count); }));
    for_vectors(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
      store(dx + i, (load(dy + i, count) - dot) * load(y + i, count) * scale, count);
    });
  }
}

void log_softmax_grad_rows(const float* y, const float* dy, float* dx, int64_t rows, int64_t cols, float) {
  for (; rows > 0; --rows, y += cols, dy += cols, dx += cols) {
    const vf total = splat(-row_sum(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA { return load(dy + i, count); }));
    for_vectors(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
      store(dx + i, fma(exp_flushed(load(y + i, count)), total, load(dy + i, count)), count);
    });
  }
}

template <RowReduce op>
void reduce(const float* x, float* out, int64_t rows, int64_t cols) {
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
    } else {
      const float total = row_sum(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
        const vf v = load(x + i, count);
        return op == RowReduce::kSumSquares ? v * v : v;
      });
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

constinit const SoftmaxTable softmax_table = {
    softmax_rows,
    log_softmax_rows,
    softmax_grad_rows,
    log_softmax_grad_rows,
    {reduce<RowReduce::kSum>, reduce<RowReduce::kMean>, reduce<RowReduce::kSumSquares>, reduce<RowReduce::kMax>,
     reduce<RowReduce::kMin>},
    sum_rows,
    gather_sum};

}  // namespace lowtide::cpu::LT_ISA
