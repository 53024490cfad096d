#include "lower/promotion.h"

#include "base/check.h"

namespace lowtide {

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (a > b) return promote(b, a);
  // From here a < b in the order bool, u8, i8, i16, i32, i64, bf16, f16, f32, f64.
  if (a == DType::kU8 && is_integer(b)) return b == DType::kI8 ? DType::kI16 : b;
  if (a == DType::kBF16 && b == DType::kF16) return DType::kF32;
  return b;
}

static std::optional<DType> combine(std::optional<DType> higher, std::optional<DType> lower) {
  if (!higher || !lower) return higher ? higher : lower;
  if (is_float(*higher)) return higher;
  if (*higher == DType::kBool || is_float(*lower)) return promote(*higher, *lower);
  return higher;
}

DType Promotion::result() const {
  const std::optional<DType> result = combine(with_dims_, combine(without_dims_, number_));
  LT_CHECK(result.has_value(), "promotion of no operands");
  return *result;
}

}  // namespace lowtide
