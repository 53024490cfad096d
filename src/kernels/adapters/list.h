// The functions named in kernels/cpu/list.inc: kernels on strided tensors over the raw loops of kernels/cpu and over
// the libraries of the process.
#pragma once

#include "kernels/kernel.h"

namespace lowtide::adapters {

constexpr const char* (*kAlways)(const KernelQuery&) = nullptr;

int64_t blas_scratch(const KernelCall& call);
const char* supports_blas(const KernelQuery& query);
const char* supports_cast(const KernelQuery& query);
const char* supports_library_conv(const KernelQuery& query);
const char* supports_library_conv_grad(const KernelQuery& query);
int64_t library_conv_bytes(const KernelCall& call);
int64_t library_conv_grad_bytes(const KernelCall& call);

#define LT_KERNEL(op, name, provider, function, ...) KernelStatus function(const KernelCall& call);
#include "kernels/cpu/list.inc"

}  // namespace lowtide::adapters
