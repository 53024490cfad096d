// Arithmetic on sizes, which may come from a file: Error(kInvalidArgument) where a result leaves 64 bits, never a
// wrapped one.
#pragma once

#include <cstdint>

#include "base/check.h"

namespace lowtide {

[[noreturn]] void fail_size_overflow(int64_t a, int64_t b);

inline int64_t checked_add(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) [[unlikely]]
    fail_size_overflow(a, b);
  return sum;
}

inline int64_t checked_subtract(int64_t a, int64_t b) {
  int64_t difference = 0;
  if (__builtin_sub_overflow(a, b, &difference)) [[unlikely]]
    fail_size_overflow(a, b);
  return difference;
}

inline int64_t checked_multiply(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) [[unlikely]]
    fail_size_overflow(a, b);
  return product;
}

// Rounded towards minus infinity, and what is left then, as Python's // and %. Requires: b != 0.
inline int64_t checked_floor_div(int64_t a, int64_t b) {
  if (b == -1) return checked_subtract(0, a);
  return a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}

inline int64_t floor_mod(int64_t a, int64_t b) {
  if (b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

}  // namespace lowtide
