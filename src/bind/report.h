// What a binding says of its bytes and of its records, and how its steps are checked.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/statistics.h"
#include "program/program.h"

namespace lowtide {

// Bytes per kind for one binding; peak = what a step holds at most, all kinds but the caller's.
struct MemoryReport {
  int64_t arena_bytes = 0;        // height of the packing: stashes, temporaries, gradients
  int64_t gradient_bytes = 0;     // of the arena: gradients
  int64_t output_bytes = 0;       // blocks of module outputs
  int64_t external_bytes = 0;     // largest transient allocation of a library during a step
  int64_t peak_bytes = 0;         // arena + outputs + external
  int64_t lower_bound_bytes = 0;  // of the arena: the largest sum of live bytes
  // The bytes above, but gradient_bytes, are those of so many forwards that are pending at once. One has:
  int64_t pending_forwards = 1;
  int64_t kept_bytes = 0;     // until its backward has ended: the whole arena, or what backward needs of forward
  int64_t passing_bytes = 0;  // while a half of it runs, which others' halves use as well; 0: in the arena
  int64_t late_bytes = 0;     // gradients, which the next one's are added onto; 0: in the arena
  std::vector<int64_t> late_blocks{};  // of them, by block
  double bind_seconds = 0;
};

// What an Inspect node saw.
struct Inspected {
  int64_t record = 0;
  int64_t place = 0;  // among the Inspect nodes of the graph
  Statistics statistics;
};

struct Binding;
// Throws where a step's operands are not what its kernel takes. The program's sizes are evaluated, and its operands lie
// in their buffers.
using StepCheck = std::function<void(const Program& program, const Binding& binding)>;

}  // namespace lowtide
