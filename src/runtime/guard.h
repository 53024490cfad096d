// Guard mode: every 64 bytes of the arena have an owner, every planned buffer has canaries around it, and fresh buffers
// are poisoned. A lifetime that ends too early or a packing that overlaps is caught at the step that would have
// corrupted data.
#pragma once

#include "runtime/hooks.h"

namespace lowtide {

// Requires: a binding with room for canaries (`guard` of bind_program).
StepHooks guard_hooks();

}  // namespace lowtide
