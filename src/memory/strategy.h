// What a way of saving memory has to say: which stashes it can give up, at which price, and how.
//
// A further strategy is a further file and a line of strategies.def: analysis, choice, configurations and tables know
// only rows and candidates.
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

struct Strategy;

// One stashed output that a candidate gives up.
struct GivenUp {
  ValueId value;
  int output_index = 0;  // of the candidate's entry node
  Dim bytes;             // that the stash holds
  double saved = 1;      // share of them that is saved: 1 (all), 0.5 …
};

// A recipe: one way to save the stashed outputs of one node. Candidates of the same entry node exclude each other.
struct Candidate {
  const Strategy* strategy = nullptr;
  NodeId entry;  // the node whose stashed outputs are given up
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
  bool cast_again = true;           // casts between floats are made again by default
  // Targets of Aten and PythonOp nodes that may run a second time: the user has said that they only compute.
  std::set<std::string> pure_calls = {};

  bool is_pure_call(const Node& node) const { return is_call(node.op) && pure_calls.contains(node.target); }
};

// Rewrites `graph` (a clone of context.graph with the same ids, perhaps already rewritten for other strategies) so that
// the chosen candidates hold.
using ApplyCandidates = void (*)(Graph& graph, const MemoryContext& context, std::span<const Candidate* const> chosen);

// A row of the list.
struct Strategy {
  std::string_view name;         // in tables and JSON: "RecomputeWithCompromise"
  std::string_view description;  // in messages about configurations: "recompute with compromise"
  int code = 0;                  // of configurations ("FastGelu+:1:12"); 0: no configuration asks for it
  int level = 0;                 // chosen inside layers from this ORTMODULE_MEMORY_OPT_LEVEL on; 0: at none
  // All its candidates are in force, unless this name is among those switched off; empty: only chosen ones are.
  std::string_view default_name = {};
  bool is_ortmodules = false;  // ORTModule has it: its tables have a section for it, empty or not
  // In the topological order of entry nodes.
  std::vector<Candidate> (*propose)(const MemoryContext& context) = nullptr;
  // Strategies with the same function are applied together, in one call, where the first of them stands in the list.
  ApplyCandidates apply = nullptr;

  bool is_default() const { return !default_name.empty(); }
};

namespace strategy {
#define LT_STRATEGY(name) extern const Strategy name;
#include "memory/strategies.def"
#undef LT_STRATEGY
}  // namespace strategy

// In the order of strategies.def.
std::span<const Strategy* const> strategies();
// That of a configuration's code; nullptr: none has it.
const Strategy* find_strategy(int code);
// The place in strategies().
size_t rank(const Strategy& strategy);
// What all strategies that are not in force by default propose: by entry node in topological order, then by rank.
std::vector<Candidate> propose_candidates(const MemoryContext& context);

}  // namespace lowtide
