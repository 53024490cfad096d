// bf16 and f16 operands of kernels that know f32 alone: widened into scratch, computed, rounded once at the end.
#pragma once

#include "kernels/kernel.h"

namespace lowtide::cpu {

void prepare_widened(const BoundCall& call, void* state, PrepareFunction f32);
KernelStatus run_widened(const KernelCall& call, KernelFunction f32);
int64_t widened_scratch(const BoundCall& call, ScratchFunction f32);
const char* supports_widened(const KernelQuery& query, SupportsFunction f32);

// Fields of the Kernel that serves halves through the f32 functions given.
template <class F32>
struct Half {
  static KernelStatus run(const KernelCall& call) { return run_widened(call, F32::kRun); }
  static void prepare(const BoundCall& call, void* state) { prepare_widened(call, state, F32::kPrepare); }
  static constexpr KernelFunction kRun = run;
  // By size: to a sanitizer the address of a function is no constant that can be compared.
  static constexpr PrepareFunction kPrepare = F32::kStateBytes > 0 ? prepare : nullptr;
  static constexpr size_t kStateBytes = F32::kStateBytes;
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
