// Means over windows that divide the last two dims as evenly as they can be, and their gradient: sums of f32, column by
// column of a window in both layouts, rounded once.
#pragma once

#include "kernels/cpu/windows/images.h"
#include "kernels/cpu/windows/window.h"

namespace lowtide::cpu {

struct AdaptiveMeans {
  AdaptiveMeans(const TensorRef& large_image, const TensorRef& small_image);
  explicit AdaptiveMeans(const BoundCall& call) : AdaptiveMeans(call.inputs[0], call.outputs[0]) {}
  Span window(int dim, int64_t o) const { return reach(o, small[dim], large[dim]); }  // what output o reads
  Span readers(int dim, int64_t at) const { return reach(at, large[dim], small[dim]); }
  float area(Span rows, int64_t col) const;
  int64_t planes, large[2], small[2];

 private:
  // Which of `from` places meet place i of `to`.
  static Span reach(int64_t i, int64_t to, int64_t from) { return {i * from / to, ((i + 1) * from + to - 1) / to}; }
};
struct AdaptiveMeansGrad : AdaptiveMeans {
  explicit AdaptiveMeansGrad(const BoundCall& call) : AdaptiveMeans(call.outputs[0], call.inputs[0]) {}
};

// Of tensors that lie row by row.
const char* supports_adaptive_rows(const KernelQuery& query);
KernelStatus adaptive_average_pool_rows(const KernelCall& call, const AdaptiveMeans& means);
KernelStatus adaptive_average_pool_grad_rows(const KernelCall& call, const AdaptiveMeansGrad& means);

// Of images with their channels last.
KernelStatus adaptive_average_pool(const KernelCall& call, const AdaptiveMeans& means);
KernelStatus adaptive_average_pool_grad(const KernelCall& call, const AdaptiveMeansGrad& means);

}  // namespace lowtide::cpu
