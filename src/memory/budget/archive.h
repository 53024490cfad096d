// Every plan of a graph that is worth having, from the fastest to the smallest, planned and packed: the answer to any
// budget.
//
// All rungs are made at once, whatever the budget is, so that a smaller budget never gets a plan that needs more bytes
// or less time. What a rung needs is what its packing is high, nothing is estimated.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "memory/budget/model.h"
#include "memory/optimizer.h"
#include "memory/peak.h"
#include "memory/row_blocks.h"

namespace lowtide {

struct Rung {
  std::vector<Candidate> recipes;  // in force in this plan, those of default strategies included
  std::vector<PricedRowBlocks> row_blocks;
  Program program;            // planned so; without steps: not planned yet, see plan_rung; once it serves, serve_rung's
  std::vector<NodeId> again;  // of the optimizer's graph: nodes that run again, in the order in which they do
  std::vector<ValueId> packed;  // of that graph: values that wait for backward in fewer bits
  int64_t peak_bytes = 0;       // of the step, at the archive's sizes
  int64_t arena_bytes = 0;
  double milliseconds = 0;        // predicted, of the step
  double extra_milliseconds = 0;  // than without budget
  // No plan of this order takes less extra time for the bytes that this one would need without row blocks.
  double least_extra_milliseconds = 0;
};

struct PlanArchive {
  std::vector<int64_t> symbol_values;  // the sizes at which rungs were sought
  DimValues dims;                      // the same by name
  std::vector<Rung> rungs;             // rungs[0]: without budget; from each to the next fewer bytes and more time
  size_t knee = 0;                     // where a further byte begins to cost more than it did on average

  const Rung& floor() const { return rungs.back(); }
};

// Whose plans an archive holds.
struct ArchiveContext {
  const MemoryOptimizer& optimizer;
  PlanOptions options;
  bool guard = false;
};

// `plan_before` is the plan of the optimizer's graph as it is, nothing made again.
PlanArchive build_archive(const ArchiveContext& context, const PlanResult& plan_before,
                          std::span<const int64_t> symbol_values, const Prices& prices);

// Plans the rung as its recipes say: its program with the order that packs best at these sizes, and what it needs
// there.
void plan_rung(const ArchiveContext& context, std::span<const int64_t> symbol_values, Rung& rung);

// The plan by which a rung serves, and its graph: messages travel while nodes run as far as the step needs no more
// bytes for it at the archive's sizes. The rung has been planned.
struct ServedRung {
  Graph graph;
  PlanResult plan;
};
ServedRung serve_rung(const ArchiveContext& context, const PlanArchive& archive, const Rung& rung);

}  // namespace lowtide
