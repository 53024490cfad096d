// The reference kernels, one per op, named in list.inc: plain loops that take any dtype that the op has and any
// strides. Every other kernel is tested against them.
#pragma once

#include "kernels/kernel.h"

namespace lowtide::reference {

#define LT_REFERENCE_RULES(op, function, rules, ...) KernelStatus function(const KernelCall& call);
#include "kernels/reference/list.inc"

int64_t sort_scratch(const KernelCall& call);

std::span<const Kernel> kernels();

}  // namespace lowtide::reference
