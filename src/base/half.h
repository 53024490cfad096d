// bf16 and f16 storage; arithmetic happens in f32. Rounding is to nearest even, as in PyTorch.
#pragma once

#include <bit>
#include <cstdint>

#include "base/dtype.h"

namespace lowtide {

struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  BFloat16(float value) {
    uint32_t raw = std::bit_cast<uint32_t>(value);
    if ((raw & 0x7fffffffu) > 0x7f800000u) {
      bits = 0x7fc0;
    } else {
      bits = static_cast<uint16_t>((raw + 0x7fffu + ((raw >> 16) & 1u)) >> 16);
    }
  }
  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

struct Float16 {
  uint16_t bits = 0;
  Float16() = default;
  Float16(float value) { bits = std::bit_cast<uint16_t>(static_cast<_Float16>(value)); }
  operator float() const { return static_cast<float>(std::bit_cast<_Float16>(bits)); }
};

// A number as a tensor of 16 bits holds it.
inline float rounded_to_half(DType dtype, double value) {
  const auto narrow = static_cast<float>(value);
  return dtype == DType::kBF16 ? static_cast<float>(BFloat16(narrow)) : static_cast<float>(Float16(narrow));
}

}  // namespace lowtide
