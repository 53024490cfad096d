// The reference kernels, one per op, named in list.inc: plain loops that take any dtype that the op has and any
// strides. Every other kernel is tested against them.
#pragma once

#include "kernels/kernel.h"

namespace lowtide::reference {

#define LT_REFERENCE(op, function) KernelStatus function(const KernelCall& call);
#define LT_REFERENCE_IN_PLACE(op, function) KernelStatus function(const KernelCall& call);
#define LT_REFERENCE_IN_PLACE_OF_SECOND(op, function) KernelStatus function(const KernelCall& call);
#define LT_REFERENCE_WITH_SCRATCH(op, function, scratch) \
  KernelStatus function(const KernelCall& call);         \
  int64_t scratch(const KernelCall& call);
#include "kernels/reference/list.inc"

}  // namespace lowtide::reference
