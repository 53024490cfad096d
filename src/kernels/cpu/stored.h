// How loops that compute in f32 find their operands in memory.
#pragma once

#include <cstdint>

namespace lowtide::cpu {

enum class Stored : uint8_t { kF32, kBF16, kF16 };
constexpr int kStored = 3;

}  // namespace lowtide::cpu
