// An op that converts as it reads and writes (ops.def: LT_CONVERTS), as what it means: the plain op between casts.
#pragma once

#include "kernels/prepared.h"

namespace lowtide::reference {

// How an operand reaches the plain kernel: as it is, or row-major and of the dtype that is computed in, in the scratch.
struct ConvertedOperand {
  TensorRef tensor;
  int64_t offset = -1;  // bytes into the scratch; -1: as it is
};

struct PlainKernel {
  Op op;
  KernelFunction run;
  PrepareFunction prepare;
  ScratchFunction scratch;
  size_t state_bytes;  // rounded up
};

// The state is that of the plain kernel, the bytes of scratch that the operands take, then the operands. Where nothing
// is converted the plain kernel gets the call as it is.
void prepare_converted(const BoundCall& call, void* state, const PlainKernel& plain);
KernelStatus run_converted(const KernelCall& call, const PlainKernel& plain);
int64_t converted_scratch(const BoundCall& call, const PlainKernel& plain);

// Of a Prepared, what a Kernel asks for.
template <Op op, class Plain, ScratchFunction plain_scratch>
struct Converted {
  static_assert(Plain::kStateBytesEach == 0);
  static constexpr PlainKernel kPlain = {op, Plain::kRun, Plain::kPrepare, plain_scratch,
                                         (Plain::kStateBytes + kStateAlignment - 1) / kStateAlignment* kStateAlignment};
  static KernelStatus run(const KernelCall& call) { return run_converted(call, kPlain); }
  static void prepare(const BoundCall& call, void* state) { prepare_converted(call, state, kPlain); }
  static int64_t scratch(const BoundCall& call) { return converted_scratch(call, kPlain); }
  static constexpr KernelFunction kRun = run;
  static constexpr PrepareFunction kPrepare = prepare;
  static constexpr size_t kStateBytes = kPlain.state_bytes + sizeof(int64_t),
                          kStateBytesEach = sizeof(ConvertedOperand);
  static constexpr ScratchFunction kScratch = scratch;
};

}  // namespace lowtide::reference
