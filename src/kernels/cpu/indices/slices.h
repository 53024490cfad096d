// GatherND and ScatterND of row-major operands: each tuple of indices picks a slice, which lies side by side.
#pragma once

#include "kernels/cpu/copy/copy.h"

namespace lowtide::cpu {

struct PickedSlices {
  PickedSlices(const TensorRef& data, const TensorRef& indices);
  // Of the slice that tuple `number` picks, in numbers; -1 outside of the data.
  int64_t offset(const int64_t* indices, int64_t number) const;

  int64_t tuples, depth, inner;  // indices of a tuple; numbers of a slice
 private:
  int64_t sizes_[kMaxRank], strides_[kMaxRank];
};

struct GatheredSlices : PickedSlices {
  explicit GatheredSlices(const BoundCall& call) : PickedSlices(call.inputs[0], call.inputs[1]) {}
};
const char* supports_gather_nd(const KernelQuery& query);
KernelStatus gather_nd(const KernelCall& call, const GatheredSlices& slices);

// Threads share the numbers of a slice, so that each number is summed in the order of the tuples. Sums of halves are
// f32, rounded once.
struct ScatteredSlices : PickedSlices {
  explicit ScatteredSlices(const BoundCall& call);
  bool adds;
};
const char* supports_scatter_nd(const KernelQuery& query);
int64_t scatter_nd_scratch(const BoundCall& call);
KernelStatus scatter_nd(const KernelCall& call, const ScatteredSlices& slices);

}  // namespace lowtide::cpu
