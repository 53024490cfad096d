// How much scratch the steps get.
#pragma once

#include "bind/binding.h"

namespace lowtide {

// 0 without scratch.
int64_t least_scratch_bytes(const Kernel& kernel, const BoundCall& call);

// Kernels that work with less scratch get less where more of it would make the step's peak, which is that of buffers
// and of the least scratch.
void lessen_scratch(const Program& program, Binding& binding);

}  // namespace lowtide
