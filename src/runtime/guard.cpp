// Guard mode: every 64 bytes of the arena have an owner, every planned buffer has canaries around it, and fresh buffers
// are poisoned. A lifetime that ends too early or a packing that overlaps is caught at the step that would have
// corrupted data.

#include <cstring>

#include "base/check.h"
#include "bind/binding.h"
#include "runtime/block_pool.h"
#include "runtime/executor.h"

namespace lowtide {

static constexpr unsigned char kCanary = 0xA5;
static constexpr unsigned char kPoison = 0xFF;  // a NaN in every float type

static bool in_arena(const Packing& packing, size_t buffer) { return packing.offsets[buffer] >= 0; }

void Executor::guard_before(RunState& state, int32_t index) {
  const Packing& packing = *state.packing_;
  for (size_t b = 0; b < program_.buffers.size(); ++b) {
    if (!in_arena(packing, b) || program_.buffers[b].first != index) continue;
    const int64_t begin = packing.offsets[b] - kCanaryBytes;
    const int64_t bytes = state.binding_->buffer_bytes[b];
    const int64_t end = (packing.offsets[b] + bytes + kCanaryBytes + 63) / 64 * 64;
    for (int64_t at = begin / 64; at < end / 64; ++at) {
      int32_t& owner = state.owners_[static_cast<size_t>(at)];
      if (owner >= 0 && program_.buffers[static_cast<size_t>(owner)].last >= index)
        LT_FAIL("guard: %", program_.buffers[b].name, " is placed over the living %",
                program_.buffers[static_cast<size_t>(owner)].name, " at step ", index, ", ",
                program_.steps[static_cast<size_t>(index)].node);
      owner = static_cast<int32_t>(b);
    }
    std::memset(state.arena_->data + begin, kCanary, kCanaryBytes);
    std::memset(state.bases_[b], kPoison, static_cast<size_t>(bytes));
    std::memset(state.bases_[b] + bytes, kCanary, kCanaryBytes);
  }
  const BoundStep& step = state.binding_->steps[static_cast<size_t>(index)];
  for (int32_t i = step.first; i < step.first + step.inputs + step.outputs; ++i) {
    const int32_t buffer = state.binding_->ref_buffers[static_cast<size_t>(i)];
    if (buffer < 0 || !in_arena(packing, static_cast<size_t>(buffer))) continue;
    const int64_t bytes = state.binding_->buffer_bytes[static_cast<size_t>(buffer)];
    const int64_t offset = packing.offsets[static_cast<size_t>(buffer)];
    for (int64_t at = offset / 64; at * 64 < offset + bytes; ++at)
      LT_CHECK(state.owners_[static_cast<size_t>(at)] == buffer, "guard: step ", index, ", ",
               program_.steps[static_cast<size_t>(index)].node, " touches %",
               program_.buffers[static_cast<size_t>(buffer)].name, " whose bytes belong to another buffer by now");
  }
}

void Executor::guard_after(RunState& state, int32_t index) {
  const Packing& packing = *state.packing_;
  for (size_t b = 0; b < program_.buffers.size(); ++b) {
    if (!in_arena(packing, b) || program_.buffers[b].last != index) continue;
    const char* ends[2] = {state.bases_[b] - kCanaryBytes, state.bases_[b] + state.binding_->buffer_bytes[b]};
    for (const char* canary : ends)
      for (int64_t i = 0; i < kCanaryBytes; ++i)
        LT_CHECK(static_cast<unsigned char>(canary[i]) == kCanary, "guard: somebody wrote past the ends of %",
                 program_.buffers[b].name, "; its last step is ", index, ", ",
                 program_.steps[static_cast<size_t>(index)].node);
  }
}

}  // namespace lowtide
