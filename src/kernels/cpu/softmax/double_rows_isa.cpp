#include "kernels/cpu/double_vectors.h"
#include "kernels/cpu/softmax/double_rows_table.h"

namespace lowtide::cpu::LT_ISA {
namespace {

constexpr int kSumLanes = 8, kParts = kSumLanes / kDoubles;
constexpr double kLowest = -__builtin_inf();

// body(part, i, count) for i = 0, kDoubles, …, parts of eight lanes in turns.
template <class Body>
LT_INLINE void for_parts(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes)
    for (int part = 0; part < kParts; ++part) body(part, i + part * kDoubles, FullDoubles{});
  for (int part = 0; i < n; ++part, i += kDoubles) {
    if (n - i >= kDoubles) {
      body(part, i, FullDoubles{});
    } else {
      body(part, i, (int)(n - i));
    }
  }
}

// Of eight lanes, the upper half onto the lower one until one is left.
template <class Join>
LT_INLINE double folded(const vd (&parts)[kParts], Join join) {
  double lanes[kSumLanes];
  for (int part = 0; part < kParts; ++part) store_doubles(lanes + part * kDoubles, parts[part]);
  for (int half = kSumLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] = join(lanes[i], lanes[i + half]);
  return lanes[0];
}

// term(i, count) of a whole row, lanes behind its end taken for 0.
template <class Term>
LT_INLINE double sum_of(int64_t n, Term term) {
  vd sums[kParts] = {};
  for_parts(n, [&](int part, int64_t i, auto count) LT_INLINE_LAMBDA {
    const vd v = term(i, count);
    if constexpr (sizeof(count) == sizeof(int)) {
      for (int lane = 0; lane < count; ++lane) sums[part][lane] += v[lane];
    } else {
      sums[part] += v;
    }
  });
  return folded(sums, [](double a, double b) LT_INLINE_LAMBDA { return a + b; });
}

// NaN is passed over.
LT_INLINE double largest_of(const double* x, int64_t n) {
  vd most[kParts];
  for (int part = 0; part < kParts; ++part) most[part] = splat_double(kLowest);
  for_parts(n, [&](int part, int64_t i, auto count) LT_INLINE_LAMBDA {
    const vd v = load_doubles(x + i, count);
    if constexpr (sizeof(count) == sizeof(int)) {
      for (int lane = 0; lane < count; ++lane)
        most[part][lane] = v[lane] > most[part][lane] ? v[lane] : most[part][lane];
    } else {
      most[part] = v > most[part] ? v : most[part];
    }
  });
  return folded(most, [](double a, double b) LT_INLINE_LAMBDA { return a > b ? a : b; });
}

void softmax(const double* x, double* y, int64_t n) {
  const double largest = largest_of(x, n);
  const double sum = sum_of(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    const vd v = exp_of_doubles(load_doubles(x + i, count) - largest);
    store_doubles(y + i, v, count);
    return v;
  });
  for_doubles(n, [&](int64_t i, auto count)
                     LT_INLINE_LAMBDA { store_doubles(y + i, load_doubles(y + i, count) / sum, count); });
}

double log_sum_exp(const double* x, int64_t n) {
  const double largest = largest_of(x, n);
  return largest + __builtin_log(sum_of(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
           return exp_of_doubles(load_doubles(x + i, count) - largest);
         }));
}

void scaled_exp(const double* x, double* y, int64_t n, double shift, double factor) {
  for_doubles(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    store_doubles(y + i, exp_of_doubles(load_doubles(x + i, count) - shift) * factor, count);
  });
}

void log_softmax(const double* x, double* y, int64_t n) {
  const double largest = largest_of(x, n);
  const double log_sum = __builtin_log(sum_of(
      n, [&](int64_t i, auto count) LT_INLINE_LAMBDA { return exp_of_doubles(load_doubles(x + i, count) - largest); }));
  for_doubles(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    store_doubles(y + i, (load_doubles(x + i, count) - largest) - log_sum, count);
  });
}

void softmax_grad(const double* dy, const double* y, double* dx, int64_t n) {
  const double dot = sum_of(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    return load_doubles(dy + i, count) * load_doubles(y + i, count);
  });
  for_doubles(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    store_doubles(dx + i, load_doubles(y + i, count) * (load_doubles(dy + i, count) - dot), count);
  });
}

void log_softmax_grad(const double* dy, const double* y, double* dx, int64_t n) {
  const double sum = sum_of(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA { return load_doubles(dy + i, count); });
  for_doubles(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    store_doubles(dx + i, load_doubles(dy + i, count) - exp_of_doubles(load_doubles(y + i, count)) * sum, count);
  });
}

// The same, of vectors of columns.
LT_INLINE vd largest_of_column(const double* x, int64_t step, int64_t size, auto count) {
  vd most = splat_double(kLowest);
  for (int64_t k = 0; k < size; ++k) {
    const vd v = load_doubles(x + k * step, count);
    most = v > most ? v : most;
  }
  return most;
}

void plane_softmax(const double* x, double* y, int64_t step, int64_t size, int64_t n) {
  for_doubles(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    const vd largest = largest_of_column(x + i, step, size, count);
    vd sum = {};
    for (int64_t k = i; k < size * step; k += step) {
      const vd v = exp_of_doubles(load_doubles(x + k, count) - largest);
      store_doubles(y + k, v, count);
      sum += v;
    }
    for (int64_t k = i; k < size * step; k += step) store_doubles(y + k, load_doubles(y + k, count) / sum, count);
  });
}

void plane_log_softmax(const double* x, double* y, int64_t step, int64_t size, int64_t n) {
  for_doubles(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    const vd largest = largest_of_column(x + i, step, size, count);
    vd sum = {};
    for (int64_t k = i; k < size * step; k += step) sum += exp_of_doubles(load_doubles(x + k, count) - largest);
    for (int lane = 0; lane < kDoubles; ++lane) sum[lane] = __builtin_log(sum[lane]);
    for (int64_t k = i; k < size * step; k += step)
      store_doubles(y + k, (load_doubles(x + k, count) - largest) - sum, count);
  });
}

void plane_softmax_grad(const double* dy, const double* y, double* dx, int64_t step, int64_t size, int64_t n) {
  for_doubles(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    vd dot = {};
    for (int64_t k = i; k < size * step; k += step) dot += load_doubles(dy + k, count) * load_doubles(y + k, count);
    for (int64_t k = i; k < size * step; k += step)
      store_doubles(dx + k, load_doubles(y + k, count) * (load_doubles(dy + k, count) - dot), count);
  });
}

void plane_log_softmax_grad(const double* dy, const double* y, double* dx, int64_t step, int64_t size, int64_t n) {
  for_doubles(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    vd sum = {};
    for (int64_t k = i; k < size * step; k += step) sum += load_doubles(dy + k, count);
    for (int64_t k = i; k < size * step; k += step) {
      const vd p = exp_of_doubles(load_doubles(y + k, count));
      store_doubles(dx + k, load_doubles(dy + k, count) - p * sum, count);
    }
  });
}

}  // namespace

constinit const DoubleRowsTable double_rows_table = {
    softmax,    log_softmax,   softmax_grad,      log_softmax_grad,   log_sum_exp,
    scaled_exp, plane_softmax, plane_log_softmax, plane_softmax_grad, plane_log_softmax_grad,
};

}  // namespace lowtide::cpu::LT_ISA
