#include "kernels/cpu/double_vectors.h"
#include "kernels/cpu/loss/ctc_table.h"

namespace lowtide::cpu::LT_ISA {
namespace {

constexpr double kNoPath = -__builtin_inf();

// Not a number if one of the three is none.
LT_INLINE vd log_sum(vd a, vd b, vd c) {
  const vl a_is_more = a > b;
  const vd more = a_is_more ? a : b, least = a_is_more ? b : a;
  const vl more_is_most = more > c;
  const vd most = more_is_most ? more : c, other = more_is_most ? c : more;
  const vd shift = most == kNoPath ? vd{} : most;
  return most + log_from_1_to_4((exp_of_doubles(least - shift) + exp_of_doubles(other - shift)) + 1.0);
}

void forward(const double* before, const int64_t* skips, const double* log_probs, double* row, int64_t n) {
  for (int64_t s = 0; s < n; s += kDoubles) {
    const vd skipped = load_longs(skips + s) ? load_doubles(before + s - 2) : splat_double(kNoPath);
    const vd paths = log_sum(load_doubles(before + s), load_doubles(before + s - 1), skipped);
    store_doubles(row + s, paths + load_doubles(log_probs + s));
  }
}

void backward(double* row, const int64_t* skips, const double* log_probs, int64_t n) {
  for (int64_t s = 0; s < n; s += kDoubles) {
    const vd skipped = load_longs(skips + s + 2) ? load_doubles(row + s + 2) : splat_double(kNoPath);
    const vd paths = log_sum(load_doubles(row + s), load_doubles(row + s + 1), skipped);
    store_doubles(row + s, paths + load_doubles(log_probs + s));
  }
}

void shares(const double* before, const double* after, const double* log_probs, double loss, double* shares,
            int64_t n) {
  for (int64_t s = 0; s < n; s += kDoubles) {
    const vd paths = load_doubles(before + s) + load_doubles(after + s);
    store_doubles(shares + s, exp_of_doubles((paths + loss) - load_doubles(log_probs + s)));
  }
}

template <class T>
LT_INLINE int64_t exp_of(const T* x, T* y, int64_t n, double factor) {
  int64_t i = 0;
  for (; i + kDoubles <= n; i += kDoubles) {
    const vd v = load_doubles(x + i);
    store_doubles(y + i, (v == kNoPath ? splat_double(__builtin_nan("")) : exp_of_doubles(v)) * factor);
  }
  return i;
}
int64_t exp_f32(const float* x, float* y, int64_t n, double factor) { return exp_of(x, y, n, factor); }
int64_t exp_f64(const double* x, double* y, int64_t n, double factor) { return exp_of(x, y, n, factor); }

}  // namespace

constinit const CtcTable ctc_table = {forward, backward, shares, exp_f32, exp_f64};

}  // namespace lowtide::cpu::LT_ISA
