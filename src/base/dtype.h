// Element types. The text names are those of the graph's grammar: f32[2, 3].
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace lowtide {

enum class DType : uint8_t {
  kBool,  // one byte, 0 or 1
  kU8,
  kI8,
  kI16,
  kI32,
  kI64,
  kBF16,
  kF16,
  kF32,
  kF64,
  kC64,      // pairs of f32: real, imaginary
  kC128,     // pairs of f64
  kContext,  // an opaque handle that PyTorch's autograd hands from a forward to its backward; no bytes of ours
};

constexpr int64_t size_bytes(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
    case DType::kI8: return 1;
    case DType::kI16:
    case DType::kBF16:
    case DType::kF16: return 2;
    case DType::kI32:
    case DType::kF32: return 4;
    case DType::kI64:
    case DType::kF64:
    case DType::kC64: return 8;
    case DType::kC128: return 16;
    case DType::kContext: return 0;
  }
  return 0;
}

constexpr bool is_float(DType dtype) { return dtype >= DType::kBF16 && dtype <= DType::kF64; }
// Stored in half the bytes, computed in f32.
constexpr bool is_half(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }
// What PyTorch's kernels, and ours, compute in: each result is rounded once.
constexpr DType opmath(DType dtype) { return is_half(dtype) ? DType::kF32 : dtype; }
constexpr bool is_complex(DType dtype) { return dtype == DType::kC64 || dtype == DType::kC128; }
constexpr bool takes_gradient(DType dtype) { return is_float(dtype) || is_complex(dtype); }
constexpr bool is_integer(DType dtype) { return dtype >= DType::kU8 && dtype <= DType::kI64; }

// "bool" "u8" "i8" "i16" "i32" "i64" "bf16" "f16" "f32" "f64" "c64" "c128" "ctx"
std::string_view name(DType dtype);
std::optional<DType> parse_dtype(std::string_view text);

}  // namespace lowtide
