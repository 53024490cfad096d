// The memory optimizer: a training graph and its plan in, a training graph that keeps less out.
//
//   analyse (stashes, layers, candidates) → choose (a level; a configuration: report/selection.h) → apply (rewrite) →
//   plan again
#pragma once

#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "memory/layers.h"
#include "memory/stash.h"
#include "memory/strategy.h"

namespace lowtide {

// One plan of a configuration: "FastGelu+:1:12".
struct MemoryRequest {
  std::string cluster;
  int code = 1;    // of a strategy; 0: leave alone
  int count = -1;  // the first N in topological order; -1: all
  friend bool operator==(const MemoryRequest&, const MemoryRequest&) = default;
};

struct ProbeConfig {
  int level = 1;     // 0: cheap ops only; 1: costly ones too
  int boundary = 0;  // 1: the inputs of layers stay stashed
};

struct MemoryOptions {
  std::vector<MemoryRequest> requests;  // level 0
  bool ignores_requests = false;        // a level is in force, and the user has written a configuration beside it
  int level = 0;  // 1: every plain plan inside each layer, the layers' inputs stay; 2: compromised ones too
  ProbeConfig probe;
  std::set<std::string> pure_calls;   // see MemoryContext
  bool cast_again = true;             // see MemoryContext
  std::vector<std::string> disabled;  // default strategies that are switched off, by their default_name
};

class MemoryOptimizer {
 public:
  // `graph` and `plan` outlive the optimizer; the plan is of the graph as it stands, nothing made again.
  MemoryOptimizer(const Graph& graph, const PlanResult& plan, MemoryOptions options);
  ~MemoryOptimizer();

  const MemoryContext& context() const;
  const MemoryOptions& options() const;
  // Those that can be chosen. In topological order of entry nodes, for each node by rank of the strategies.
  const std::vector<Candidate>& candidates() const;
  // Those of the default strategies that are not switched off, which are in force in any case.
  const std::vector<Candidate>& defaults() const;
  // What the level of the options takes, indices into candidates(), ascending: inside each layer, of each node the
  // candidate that stands first.
  std::vector<int32_t> choose_level() const;
  // The graph with the defaults and the chosen candidates in force.
  Graph apply(std::span<const int32_t> chosen) const;
  // The graph with these recipes in force and no others.
  Graph rewrite(std::span<const Candidate> recipes) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lowtide
