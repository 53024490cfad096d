// The memory optimizer: a training graph and its plan in, a training graph that keeps less out.
//
//   analyse (stashes, layers, candidates) → select (configuration or level) → apply (rewrite) → plan again
#pragma once

#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "memory/config.h"
#include "memory/layers.h"
#include "memory/stash.h"
#include "memory/strategy.h"

namespace lowtide {

struct MemoryOptions {
  std::vector<MemoryRequest> requests;  // level 0
  bool ignores_requests = false;        // a level is in force, and the user has written a configuration beside it
  int level = 0;  // 1: every plain plan inside each layer, the layers' inputs stay; 2: compromised ones too
  ProbeConfig probe;
  std::set<std::string> pure_calls;  // see MemoryContext
  // Made again by default, since it costs next to nothing: norm results and SiLU; casts between floats.
  bool rebuild = true;
  bool rebuild_casts = true;

  // What ORTMODULE_MEMORY_OPT_LEVEL and ORTMODULE_MEMORY_OPT_CONFIG ask for. Beside a level the configuration is not
  // even read, so that no mistake in it matters.
  void ask(int wanted_level, std::string_view config);
};

// A request and what became of it.
struct RequestOutcome {
  MemoryRequest request;
  int found = 0;    // candidates of that cluster and type
  int applied = 0;  // that were rewritten
};

struct Selection {
  std::vector<int32_t> chosen;  // indices into candidates(), ascending
  std::vector<RequestOutcome> outcomes;
  std::vector<std::string> warnings;  // for the user: unknown clusters with their nearest, absorbed ones, level notices
};

class MemoryOptimizer {
 public:
  // `graph` and `plan` outlive the optimizer; the plan is of the graph as it stands, nothing made again.
  MemoryOptimizer(const Graph& graph, const PlanResult& plan, MemoryOptions options);
  ~MemoryOptimizer();

  const MemoryContext& context() const;
  const MemoryOptions& options() const;
  // In topological order of entry nodes, for each node plain, compromised, compressed.
  const std::vector<Candidate>& candidates() const;
  // What the options ask for.
  Selection select() const;
  // The graph with the chosen candidates (and the default rebuilding) in force.
  Graph apply(std::span<const int32_t> chosen) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lowtide
