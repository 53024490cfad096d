#include "base/dtype.h"

#include <array>

namespace lowtide {

static constexpr std::array<std::string_view, 13> kNames = {"bool", "u8",  "i8",  "i16", "i32",  "i64", "bf16",
                                                            "f16",  "f32", "f64", "c64", "c128", "ctx"};

std::string_view name(DType dtype) { return kNames[static_cast<size_t>(dtype)]; }

std::optional<DType> parse_dtype(std::string_view text) {
  for (size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == text) return static_cast<DType>(i);
  return std::nullopt;
}

}  // namespace lowtide
