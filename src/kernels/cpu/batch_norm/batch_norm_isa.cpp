#include "kernels/cpu/batch_norm/batch_norm_table.h"
#include "kernels/cpu/half_vectors.h"

namespace lowtide::cpu::LT_ISA {
namespace {

template <class Numbers>
struct Loops {
  using Stored = typename Numbers::Number;

  static void plane_moments(const void* x_at, int64_t n, float* mean, float* squares) {
    const auto* x = static_cast<const Stored*>(x_at);
    const float m = row_sum(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA { return Numbers::load(x + i, count); }) /
                    static_cast<float>(n);
    *mean = m;
    *squares = row_sum(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
      const vf d = keep_lanes(Numbers::load(x + i, count) - m, count, 0);
      return d * d;
    });
  }

  static void row_moments(const void* x_at, int64_t rows, int64_t channels, float* mean, float* squares) {
    const auto* x = static_cast<const Stored*>(x_at);
    const float share = 1.0f / static_cast<float>(rows);
    for_vectors(channels, [&](int64_t c, auto count) LT_INLINE_LAMBDA {
      vf total = {}, square = {};
      for (int64_t r = 0; r < rows; ++r) total += Numbers::load(x + r * channels + c, count);
      const vf m = total * share;
      for (int64_t r = 0; r < rows; ++r) {
        const vf d = Numbers::load(x + r * channels + c, count) - m;
        square = fma(d, d, square);
      }
      store(mean + c, m, count);
      store(squares + c, square, count);
    });
  }

  static void plane_affine(const void* x_at, void* y_at, int64_t n, float a, float b) {
    const auto* x = static_cast<const Stored*>(x_at);
    auto* y = static_cast<Stored*>(y_at);
    const vf va = splat(a), vb = splat(b);
    for_vectors(n, [&](int64_t i, auto count)
                       LT_INLINE_LAMBDA { Numbers::store(y + i, fma(Numbers::load(x + i, count), va, vb), count); });
  }

  static void row_affine(const void* x_at, void* y_at, int64_t rows, int64_t channels, const float* a, const float* b) {
    const auto* x = static_cast<const Stored*>(x_at);
    auto* y = static_cast<Stored*>(y_at);
    for (int64_t r = 0; r < rows; ++r, x += channels, y += channels) {
      for_vectors(channels, [&](int64_t c, auto count) LT_INLINE_LAMBDA {
        Numbers::store(y + c, fma(Numbers::load(x + c, count), load(a + c, count), load(b + c, count)), count);
      });
    }
  }

  static void plane_sums(const void* dy_at, const void* x_at, int64_t n, float mean, float* sum, float* dot) {
    const auto *dy = static_cast<const Stored*>(dy_at), *x = static_cast<const Stored*>(x_at);
    *sum = row_sum(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA { return Numbers::load(dy + i, count); });
    *dot = row_sum(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
      return Numbers::load(dy + i, count) * (Numbers::load(x + i, count) - mean);
    });
  }

  static void row_sums(const void* dy_at, const void* x_at, int64_t rows, int64_t channels, const float* mean,
                       float* sum, float* dot) {
    const auto *dy = static_cast<const Stored*>(dy_at), *x = static_cast<const Stored*>(x_at);
    for_vectors(channels, [&](int64_t c, auto count) LT_INLINE_LAMBDA {
      const vf m = load(mean + c, count);
      vf total = {}, product = {};
      for (int64_t r = 0; r < rows; ++r) {
        const vf g = Numbers::load(dy + r * channels + c, count);
        total += g;
        product = fma(g, Numbers::load(x + r * channels + c, count) - m, product);
      }
      store(sum + c, total, count);
      store(dot + c, product, count);
    });
  }

  static void plane_grad(const void* dy_at, const void* x_at, void* dx_at, int64_t n, float mean, float a, float b,
                         float c) {
    const auto *dy = static_cast<const Stored*>(dy_at), *x = static_cast<const Stored*>(x_at);
    auto* dx = static_cast<Stored*>(dx_at);
    const vf va = splat(a), vb = splat(b), vc = splat(c);
    for_vectors(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
      Numbers::store(dx + i, fma(Numbers::load(dy + i, count), va, fma(Numbers::load(x + i, count) - mean, vb, vc)),
                     count);
    });
  }

  static void row_grad(const void* dy_at, const void* x_at, void* dx_at, int64_t rows, int64_t channels,
                       const float* mean, const float* a, const float* b, const float* c) {
    const auto *dy = static_cast<const Stored*>(dy_at), *x = static_cast<const Stored*>(x_at);
    auto* dx = static_cast<Stored*>(dx_at);
    for (int64_t r = 0; r < rows; ++r, dy += channels, x += channels, dx += channels) {
      for_vectors(channels, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
        const vf centred = Numbers::load(x + i, count) - load(mean + i, count);
        const vf rest = fma(centred, load(b + i, count), load(c + i, count));
        Numbers::store(dx + i, fma(Numbers::load(dy + i, count), load(a + i, count), rest), count);
      });
    }
  }

  static constexpr BatchNormLoops kAll = {plane_moments, row_moments, plane_affine, row_affine,
                                          plane_sums,    row_sums,    plane_grad,   row_grad};
};

}  // namespace

constinit const BatchNormTable batch_norm_table = {Loops<Floats>::kAll, Loops<Halves<true>>::kAll,
                                                   Loops<Halves<false>>::kAll};

}  // namespace lowtide::cpu::LT_ISA
