// The way from a captured graph to its plan, stage by stage, with the texts that reports show of each.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "emit/plan.h"
#include "lower/lower.h"
#include "memory/optimizer.h"
#include "memory/prices.h"
#include "report/selection.h"
#include "runtime/hooks.h"
#include "session/observation.h"
#include "session/session.h"

namespace lowtide {

// Not movable: the memory optimizer looks at the graph and the plan beside it.
struct Stages {
  Stages(Graph captured, const SessionOptions& options);
  Stages(const Stages&) = delete;
  Stages& operator=(const Stages&) = delete;

  LoweringReport lowering;
  std::string lowered_text, forward_text, training_text;
  Graph before_memory;     // the training graph before the memory optimizer; of a session without training: none
  PlanResult plan_before;  // its plan
  std::unique_ptr<MemoryOptimizer> memory_optimizer;
  Selection selection;
  Prices prices;
  std::vector<std::vector<int>> gradient_sources;  // by input
  std::vector<int> gradient_reads;                 // inputs
  PlanResult planned;
  std::unique_ptr<Observation> observation;             // if the options ask for it
  std::vector<StepHooks> hooks;                         // a fault, in test builds
  std::vector<std::pair<std::string, double>> seconds;  // stage → time

 private:
  // The graph with what the options ask of the memory optimizer in force, which is made for it; in a session without
  // training, the graph.
  Graph keep_less(Graph graph, const SessionOptions& options);
  // Fills `planned`; reductions of the graph may move for it.
  void make_plan(Graph& graph, const SessionOptions& options);
};

// The session's own, with these requests in place of its configuration.
MemoryOptions memory_options(const SessionOptions& options, std::string_view config, std::string_view probe_config,
                             int level);

}  // namespace lowtide
