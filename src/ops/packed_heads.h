// Queries, keys and values, or their gradients, in one tensor.
#pragma once

#include <array>

#include "ops/view.h"

namespace lowtide {

// [B, H, S, E] → [B, S, 3, H, E] (axis 2) or [B, S, H, 3, E] (axis 3)
Shape packed_heads(const Shape& heads, int64_t axis);

// [B, S, 3, H, E] (axis 2) or [B, S, H, 3, E] (axis 3) → [B, H, S, E]
Shape heads_of_packed(const Shape& packed, int64_t axis);

// How the three, [B, H, S, E] each, lie in a row-major tensor of that shape.
std::array<Strided, 3> parts_of_packed_heads(const Shape& packed, int64_t axis);

}  // namespace lowtide
