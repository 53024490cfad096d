// A training step in numbers, at sizes in numbers: what a search for a cheaper plan reads instead of the graph.
//
// Positions are indices into the order of the graph, made with nothing run again. Values that share bytes are one
// (their owner). A value of forward is *optional* where backward can do without its bytes being kept: they may be given
// up behind their last reader in forward, and their node runs again before backward reads them. Some may wait for it
// in fewer bits (memory/compress).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "bind/binding.h"
#include "memory/optimizer.h"
#include "memory/prices.h"

namespace lowtide {

// Lists of ids one behind another: those of item i are ids[begin[i] .. begin[i + 1]).
struct IdLists {
  std::vector<int32_t> begin{0};
  std::vector<int32_t> ids;

  std::span<const int32_t> operator[](size_t item) const {
    return std::span(ids).subspan(static_cast<size_t>(begin[item]), static_cast<size_t>(begin[item + 1] - begin[item]));
  }
  void finish_item() { begin.push_back(static_cast<int32_t>(ids.size())); }
};

struct ModelValue {
  ValueId value;
  int64_t bytes = 0;                // in the arena; 0: they lie elsewhere
  int32_t producer = -1;            // position; -1: an input's
  int32_t held_until = -1;          // a position that it outlives in any case: gradients, updates of buffers
  int32_t last_in_forward = -1;     // position of its last reader before YieldOp, at least its producer
  int32_t first_in_backward = -1;   // position of its first reader behind YieldOp; -1: none
  bool is_optional = false;         // made in forward, not there in backward unless it is kept
  bool may_run_again = false;       // its node may
  bool is_default = false;          // given up in every plan without budget, for next to nothing
  int64_t packed_bytes = 0;         // those of its elements in fewer bits; 0: it cannot wait so
  double packing_milliseconds = 0;  // of packing it and unpacking it
};

// What an output of a step may take the bytes of, if nobody reads them later.
struct Takeover {
  int32_t to = 0;
  int32_t from = 0;
};

// Bytes of no value over a stretch of positions: copies that kernels ask for.
struct FixedBytes {
  int32_t first = 0;
  int32_t last = 0;
  int64_t bytes = 0;
};

struct StepModel {
  int32_t yield = 0;  // position of YieldOp; the number of positions where there is none
  int32_t positions = 0;
  std::vector<ModelValue> values;
  IdLists reads;        // by position: values, each once
  IdLists reads_again;  // by position of forward: the same without what only the first run takes
  IdLists makes;        // by position: values
  std::vector<std::vector<Takeover>> takeovers;  // by position, best first
  std::vector<int64_t> scratch;                  // by position
  std::vector<int64_t> copies;                   // by position: of what is copied for it, when it runs again
  std::vector<double> milliseconds;              // by position
  std::vector<bool> is_kept_alive;               // by position: the node stays though nobody reads what it makes
  std::vector<FixedBytes> fixed;
  int64_t other_bytes = 0;  // of the peak: outputs and what libraries hold
};

// `stash`, `plan` and `binding` are of context.graph as it is, nothing made again. `defaults`: what the default
// strategies give up.
StepModel model_step(const MemoryContext& context, const StashAnalysis& stash, const PlanResult& plan,
                     const Binding& binding, const DimValues& dims, const Prices& prices,
                     const std::vector<Candidate>& defaults);

// How a value of forward gets to its readers in backward.
enum class Keep : uint8_t {
  kAgain,   // its node runs again, if anybody reads it
  kWhole,   // its bytes stay
  kPacked,  // it stays in fewer bits, and is unpacked for them
};
// By value of the model.
using Kept = std::vector<Keep>;

// That of the plan without budget.
Kept kept_by_default(const StepModel& model);

// A run of the whole step with values kept so.
struct SimulatedStep {
  int64_t peak_bytes = 0;      // of the arena
  double milliseconds = 0;     // of all nodes, those that run again twice, and of packing
  std::vector<int64_t> bytes;  // by position: the most that are live while it runs, and what runs again right before it
  std::vector<int32_t> again;  // positions of nodes that run again, in the order in which they do
  std::vector<int32_t> slots;  // of each of them: the position right before which it does
  std::vector<int32_t> packed;  // values that are packed, in the order in which they are unpacked
  bool is_deep = false;         // a chain is run again that is longer than the rewriter follows; nothing else is set
};

// The slow obvious way: every life is found anew.
SimulatedStep simulate(const StepModel& model, const Kept& kept);

}  // namespace lowtide
