// The first strategy: a stashed value is made again in backward from what is alive there anyway (plain), or from a
// strictly smaller value that is kept in its place (compromised).
#pragma once

#include <set>

#include "memory/strategy.h"

namespace lowtide {

class Recompute : public Strategy {
 public:
  std::vector<Candidate> propose(const MemoryContext& context) const override;
  // Clones run right before their first consumer, once for all who read them, and are named after their originals.
  void apply(Graph& graph, const MemoryContext& context, std::span<const Candidate* const> chosen) const override;
};

// The op type as clusters name it: "FastGelu", "FusedMatMul".
std::string_view cluster_name(const Node& node);

// What a node reads when it runs again: a batch norm makes its result without the running statistics, which forward has
// updated by then.
std::vector<ValueId> operands_again(const Node& node);

// What is made again in backward without being asked, since it costs next to nothing there: results of LayerNorm and
// RMSNorm, and SiLU, whose gradients keep their inputs anyway; copies of inputs; with `casts`, casts between floats of
// what is there (parameters under autocast, activations that are kept) or of such results. `stash` is an analysis
// without rebuilding.
std::set<ValueId> rebuilt_values(const Graph& graph, const StashAnalysis& stash, bool casts);

}  // namespace lowtide
