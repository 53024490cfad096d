// What planning found out, as text: from it a later process runs the same graph under the same options, and plans
// nothing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "emit/plan.h"
#include "lower/lower.h"
#include "memory/optimizer.h"
#include "report/selection.h"
#include "session/session.h"

namespace lowtide {

struct StoredPlan {
  Program program;  // with the order that packed best
  std::vector<KernelChoice> choices;
  LoweringReport lowering;
  std::vector<std::vector<int>> gradient_sources;  // by input
  std::vector<int> gradient_reads;                 // inputs
  std::vector<RequestOutcome> outcomes;            // of the memory optimizer
  std::vector<std::string> warnings;               // the same
  std::vector<std::string> archives = {};          // of plans under a budget, memory/budget/stored_archive.h
};

// Of the graph's text and of all options that a plan depends on. A configuration in a file counts by what it asks for.
uint64_t plan_key(std::string_view captured_text, const SessionOptions& options);

std::string print(const StoredPlan& stored, uint64_t key);
// Error(kInvalidProgram) for a text that is damaged, was made under another key, or would not run on this graph: its
// program passes check(), takes the inputs of `captured` and names kernels of this build.
StoredPlan parse_stored_plan(std::string_view text, uint64_t key, const Graph& captured);

}  // namespace lowtide
