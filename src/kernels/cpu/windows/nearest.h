// Resize to the nearest of row-major f32 images, line by line, and its gradient.
#pragma once

#include "kernels/cpu/windows/resize.h"

namespace lowtide::cpu {

// Only where images lie row by row: in others channels side by side are copied together.
const char* supports_nearest_rows(const KernelQuery& query);
KernelStatus resize_rows(const KernelCall& call, const Resized& resized);
KernelStatus resize_rows_grad(const KernelCall& call, const ResizedGrad& resized);
int64_t resize_rows_grad_scratch(const BoundCall& call);

}  // namespace lowtide::cpu
