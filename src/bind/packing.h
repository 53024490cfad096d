// Where a binding's buffers lie: packings of its arenas, and what they need.
#pragma once

#include <cstdint>
#include <vector>

#include "bind/binding.h"

namespace lowtide {

// `order`: of the host's arena; becomes the one that packed so, unless it is two blocks.
Packing make_packing(const Program& program, const Binding& binding, const Placement& placement, bool guard,
                     std::vector<int32_t>& order);

// Of `forwards` that are pending at once.
MemoryReport memory_with(const Program& program, Binding& binding, bool guard, const Placement& placement,
                         int64_t forwards);

}  // namespace lowtide
