// GatherElements and ScatterElements (torch.gather, torch.scatter): each line along the axis picks within itself, so
// that lines are shared among threads.
#pragma once

#include "kernels/cpu/copy/copy.h"

namespace lowtide::cpu {

// The lines along `axis` of the indices, and of what they are picked from (`along`) and of the other operand.
struct PickedLines {
  PickedLines(const BoundCall& call, const TensorRef& along, const TensorRef& other);

  struct Line {
    int64_t along, indices, other;  // offsets of its first number
  };
  Line line(int64_t number) const;

  int64_t lines = 1, picks, size;  // of the axis: of the indices, of what they are picked from
  int64_t along_step, indices_step, other_step;

 private:
  struct Dim {
    int64_t size, along, indices, other;
  };
  Dim dims_[kMaxRank];
  int rank_ = 0;
};

struct GatheredElements : PickedLines {
  explicit GatheredElements(const BoundCall& call) : PickedLines(call, call.inputs[0], call.outputs[0]) {}
};
const char* supports_gather_elements(const KernelQuery& query);
KernelStatus gather_elements(const KernelCall& call, const GatheredElements& lines);

// Sums of halves are f32, rounded once.
struct ScatteredElements : PickedLines {
  explicit ScatteredElements(const BoundCall& call);
  TensorCopy base;
  bool adds;
};
const char* supports_scatter_elements(const KernelQuery& query);
int64_t scatter_elements_scratch(const BoundCall& call);
KernelStatus scatter_elements(const KernelCall& call, const ScatteredElements& lines);

}  // namespace lowtide::cpu
