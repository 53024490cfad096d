// bf16 and f16 operands of kernels that know f32 alone: widened into scratch, computed, rounded once at the end.
#pragma once

#include "kernels/cpu/copy/copy.h"
#include "kernels/prepared.h"

namespace lowtide::cpu {

// How an operand reaches the f32 kernel: as it is, or as a row-major one in the scratch.
struct WidenedOperand {
  TensorRef tensor;
  int64_t offset = -1;  // bytes into the scratch; -1: as it is
  TensorCopy copy;      // into the scratch, or out of it
};

// The state is that of the f32 kernel, rounded up, the bytes of scratch that the operands take, then the operands.
void prepare_widened(const BoundCall& call, void* state, PrepareFunction f32, size_t f32_state_bytes);
KernelStatus run_widened(const KernelCall& call, KernelFunction f32, size_t f32_state_bytes);
int64_t widened_scratch(const BoundCall& call, ScratchFunction f32);
const char* supports_widened(const KernelQuery& query, SupportsFunction f32);

// Fields of the Kernel that serves halves through the f32 functions given.
template <class F32>
struct Half {
  static_assert(F32::kStateBytesEach == 0);
  static constexpr size_t kF32Bytes = (F32::kStateBytes + kStateAlignment - 1) / kStateAlignment * kStateAlignment;
  static KernelStatus run(const KernelCall& call) { return run_widened(call, F32::kRun, kF32Bytes); }
  static void prepare(const BoundCall& call, void* state) { prepare_widened(call, state, F32::kPrepare, kF32Bytes); }
  static constexpr KernelFunction kRun = run;
  static constexpr PrepareFunction kPrepare = prepare;
  static constexpr size_t kStateBytes = kF32Bytes + sizeof(int64_t), kStateBytesEach = sizeof(WidenedOperand);
};
template <ScratchFunction f32>
int64_t half_scratch(const BoundCall& call) {
  return widened_scratch(call, f32);
}
template <SupportsFunction f32>
const char* half_supports(const KernelQuery& query) {
  return supports_widened(query, f32);
}

}  // namespace lowtide::cpu
