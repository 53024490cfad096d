// Runs a Program: binds its sizes, packs its buffers, and executes the two halves of a step.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "program/program.h"
#include "runtime/calls.h"
#include "runtime/tensor.h"

namespace lowtide {

class RunState;  // one pending forward: its arena, output blocks, contexts, random key

// Bytes per kind for one binding; peak = what a step holds at most, all kinds but the caller's.
struct MemoryReport {
  int64_t arena_bytes = 0;      // height of the packing: stashes, temporaries, gradients
  int64_t gradient_bytes = 0;   // of the arena: gradients
  int64_t output_bytes = 0;
  int64_t external_bytes = 0;   // largest transient allocation of a library during a step
  int64_t peak_bytes = 0;       // arena + outputs + external
  int64_t lower_bound_bytes = 0;  // of the arena: the largest sum of live bytes
  double bind_seconds = 0;
};

// Set by a signal handler or another thread; the executor polls it between steps and unwinds with Error(kInterrupted).
std::atomic<bool>& stop_flag();

}  // namespace lowtide
