#include "bind/scratch.h"

#include <algorithm>

namespace lowtide {

int64_t least_scratch_bytes(const Kernel& kernel, const BoundCall& call) {
  if (kernel.least_scratch_bytes) return kernel.least_scratch_bytes(call);
  return kernel.scratch_bytes ? kernel.scratch_bytes(call) : 0;
}

// By step, of the host's buffers.
static std::vector<int64_t> live_bytes(const Program& program, const Binding& binding) {
  std::vector<int64_t> bytes(program.steps.size() + 1, 0);
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const ProgramBuffer& buffer = program.buffers[i];
    if (buffer.device != 0 || (buffer.kind != BufferKind::kArena && buffer.kind != BufferKind::kGradient)) continue;
    const int64_t padded = (binding.buffer_bytes[i] + 63) / 64 * 64;
    bytes[static_cast<size_t>(buffer.first)] += padded;
    bytes[static_cast<size_t>(buffer.last) + 1] -= padded;
  }
  for (size_t i = 1; i < bytes.size(); ++i) bytes[i] += bytes[i - 1];
  return bytes;
}

void lessen_scratch(const Program& program, Binding& binding) {
  const std::vector<int64_t> live = live_bytes(program, binding);
  int64_t peak = 0;
  for (size_t i = 0; i < binding.steps.size(); ++i) {
    BoundStep& step = binding.steps[i];
    if (step.scratch_bytes == 0) continue;
    step.least_scratch_bytes = least_scratch_bytes(*step.kernel, bound_call(binding, step));
    if (step.device == 0) peak = std::max(peak, live[i] + (step.least_scratch_bytes + 63) / 64 * 64);
  }
  peak = std::max(peak, *std::max_element(live.begin(), live.end()));
  for (size_t i = 0; i < binding.steps.size(); ++i) {
    BoundStep& step = binding.steps[i];
    if (step.device == 0 && live[i] + step.scratch_bytes > peak)
      step.scratch_bytes = std::max(step.least_scratch_bytes, peak - live[i]);
  }
}

}  // namespace lowtide
