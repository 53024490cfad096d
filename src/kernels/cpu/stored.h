// How loops that compute in f32 find their operands in memory: an index of their tables.
#pragma once

#include <cstdint>

namespace lowtide::cpu {

enum Stored : uint8_t { kStoredF32, kStoredBF16, kStoredF16 };
constexpr int kStored = 3;

}  // namespace lowtide::cpu
