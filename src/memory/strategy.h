// What a way of saving memory has to say: which stashes it can give up, at which price, and how.
//
// Recompute (recompute/) makes a value again in backward; compression (compress/) keeps it in fewer bytes. A further
// strategy is a further file: analysis, choice and tables know only candidates.
#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "memory/layers.h"
#include "memory/stash.h"

namespace lowtide {

// The codes of a configuration: "FastGelu+:1:12".
enum class OptimizationType { kNone = 0, kRecompute = 1, kRecomputeWithCompromise = 2, kCompress = 3 };
std::string_view name(OptimizationType type);  // "Recompute", "RecomputeWithCompromise", "Compress"

// One stashed output that a candidate gives up.
struct GivenUp {
  ValueId value;
  int output_index = 0;  // of the candidate's entry node
  Dim bytes;             // that the stash holds
  double saved = 1;      // share of them that is saved: 1 (all), 0.5 …
};

// One way to save the stashed outputs of one node. Candidates of the same entry node exclude each other.
struct Candidate {
  OptimizationType type = OptimizationType::kRecompute;
  std::string cluster;  // op types of the subgraph in topological order, each followed by '+': "Cast+Where+Softmax+"
  NodeId entry;         // the node whose stashed outputs are given up
  std::vector<GivenUp> outputs;
  std::vector<ValueId> kept;     // become stashes instead (compromise, compression: what is kept has no value yet)
  Dim kept_bytes;                // of what is kept instead
  std::vector<NodeId> nodes;     // that run again in backward, topological; the last is the entry
  Dim saving;                    // bytes: outputs minus kept_bytes
  Dim extra_flops, extra_bytes;  // computed and moved once more in backward
  int layer = -1;                // index into the layers; -1: outside
};

// What every strategy may ask.
struct MemoryContext {
  const Graph& graph;
  const StashAnalysis& stash;
  const Layers& layers;
  bool probe_costly = true;         // ops of price `costly` may be recomputed, not only `cheap` ones
  bool keep_layer_borders = false;  // what crosses from one layer to another stays stashed
  // Targets of Aten and PythonOp nodes that may run a second time: the user has said that they only compute.
  std::set<std::string> pure_calls = {};

  bool is_pure_call(const Node& node) const { return is_call(node.op) && pure_calls.contains(node.target); }
};

class Strategy {
 public:
  virtual ~Strategy() = default;
  // In the topological order of entry nodes.
  virtual std::vector<Candidate> propose(const MemoryContext& context) const = 0;
  // Rewrites `graph` (a clone of context.graph with the same ids, perhaps already rewritten by other strategies) so
  // that the chosen candidates hold.
  virtual void apply(Graph& graph, const MemoryContext& context, std::span<const Candidate* const> chosen) const = 0;
};

}  // namespace lowtide
