// What happens around the steps of a region beside running them: guard mode, traces, probes, and what tests hang in.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "bind/binding.h"

namespace lowtide {

// A run as its hooks see it.
struct RunView {
  const Program& program;
  const Binding& binding;
  const Packing& packing;
  char* arena;                   // the host's
  char* above;                   // where it goes on behind Packing::kept_bytes; nullptr: in one block
  std::span<char*> bases;        // by buffer; nullptr where the caller sent none
  std::vector<int32_t>& owners;  // guard mode's: by 64 bytes of the arena, the living buffer there, or -1
  int32_t region = 0;
};

// Each may be empty. Of several structs the first one's `begin` and `before` come first and its `after` and `end` last,
// so that the last one stands next to the step.
struct StepHooks {
  std::function<void(const RunView&)> begin;  // before operands are relocated to `bases`
  std::function<void(const RunView&, int32_t step)> before, after;
  std::function<void(const RunView&)> end;
};

// An operand with its bytes; without data where the caller sent none.
TensorRef locate(const RunView& run, int32_t operand);

}  // namespace lowtide
