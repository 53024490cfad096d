#include "kernels/cpu/simd.h"
#include "kernels/cpu/statistics/statistics_table.h"

namespace lowtide::cpu::LT_ISA {
namespace {

// Vectors as wide as the machine's: the compiler compares wider ones element by element.
constexpr int kDoubles = LT_LANES / 2;
typedef double vd __attribute__((vector_size(8 * kDoubles)));
typedef int64_t vl __attribute__((vector_size(8 * kDoubles)));

// How elements are stored, and as doubles.
template <class T>
struct Plain {
  typedef T stored __attribute__((vector_size(sizeof(T) * kDoubles)));
  typedef T element;
  LT_INLINE vd widen(const T* x) {
    stored v;
    __builtin_memcpy(&v, x, sizeof v);
    return __builtin_convertvector(v, vd);
  }
  LT_INLINE double widen_one(T x) { return (double)x; }
};

struct Brain {
  typedef uint16_t element;
  LT_INLINE vd widen(const uint16_t* x) {
    typedef uint16_t stored __attribute__((vector_size(2 * kDoubles)));
    typedef uint32_t words __attribute__((vector_size(4 * kDoubles)));
    typedef float floats __attribute__((vector_size(4 * kDoubles)));
    stored v;
    __builtin_memcpy(&v, x, sizeof v);
    return __builtin_convertvector((floats)(__builtin_convertvector(v, words) << 16), vd);
  }
  LT_INLINE double widen_one(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return (double)value;
  }
};

struct Half {
  typedef _Float16 element;
  LT_INLINE vd widen(const _Float16* x) {
    vd v;
    for (int i = 0; i < kDoubles; ++i) v[i] = (double)(float)x[i];
    return v;
  }
  LT_INLINE double widen_one(_Float16 x) { return (double)(float)x; }
};

LT_INLINE bool is_finite(double x) { return x - x == 0; }

// Where something is no number, or a sum overflows: element by element.
template <class Storage>
void block_of_all(const typename Storage::element* x, int64_t n, PartStatistics* result) {
  double sum = 0;
  bool is_first = true;
  for (int64_t i = 0; i < n; ++i) {
    const double value = Storage::widen_one(x[i]);
    sum += value;
    if (value != value) {
      ++result->nan;
      continue;
    }
    if (!is_finite(value)) ++result->inf;
    result->negative += value < 0;
    result->zero += value == 0;
    if (is_first || value < result->min) result->min = value;
    if (is_first || value > result->max) result->max = value;
    is_first = false;
  }
  if (result->nan > 0) result->min = result->max = __builtin_nan("");
  result->mean = sum / (double)n;
  for (int64_t i = 0; i < n; ++i) {
    const double distance = Storage::widen_one(x[i]) - result->mean;
    result->squares += distance * distance;
  }
}

template <class Storage>
void block(const void* from, int64_t n, PartStatistics* result) {
  const auto* x = (const typename Storage::element*)from;
  *result = PartStatistics{n, 0, 0, 0, 0, 0, 0, 0, 0};
  const int64_t whole = n / kDoubles * kDoubles;
  const double first = Storage::widen_one(x[0]);
  vd sum = {}, low = first - vd{}, high = first - vd{};
  vl negative = {}, zero = {};
  for (int64_t i = 0; i < whole; i += kDoubles) {
    const vd v = Storage::widen(x + i);
    sum += v;
    low = v < low ? v : low;
    high = v > high ? v : high;
    negative -= v < 0.0;
    zero -= v == 0.0;
  }
  double total = 0, least = first, most = first;
  for (int k = 0; k < kDoubles; ++k) {
    total += sum[k];
    least = low[k] < least ? low[k] : least;
    most = high[k] > most ? high[k] : most;
    result->negative += negative[k];
    result->zero += zero[k];
  }
  for (int64_t i = whole; i < n; ++i) {
    const double value = Storage::widen_one(x[i]);
    total += value;
    least = value < least ? value : least;
    most = value > most ? value : most;
    result->negative += value < 0;
    result->zero += value == 0;
  }
  if (!is_finite(total)) {
    *result = PartStatistics{n, 0, 0, 0, 0, 0, 0, 0, 0};
    return block_of_all<Storage>(x, n, result);
  }
  const double mean = total / (double)n;
  vd around = {};
  for (int64_t i = 0; i < whole; i += kDoubles) {
    const vd distance = Storage::widen(x + i) - mean;
    around += distance * distance;
  }
  double squares = 0;
  for (int k = 0; k < kDoubles; ++k) squares += around[k];
  for (int64_t i = whole; i < n; ++i) {
    const double distance = Storage::widen_one(x[i]) - mean;
    squares += distance * distance;
  }
  result->min = least;
  result->max = most;
  result->mean = mean;
  result->squares = squares;
}

}  // namespace

constinit const StatisticsTable statistics_table = {
    {block<Plain<uint8_t>>, block<Plain<uint8_t>>, block<Plain<int8_t>>, block<Plain<int16_t>>, block<Plain<int32_t>>,
     block<Plain<int64_t>>, block<Brain>, block<Half>, block<Plain<float>>, block<Plain<double>>}};

}  // namespace lowtide::cpu::LT_ISA
