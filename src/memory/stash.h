// Activations kept for backward, as a plan made without recompute keeps them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "plan/plan.h"

namespace lowtide {

// Bytes made in forward that backward reads: under the name of the value that owns them, or of views of it.
struct Stash {
  ValueId value;               // owns the bytes: no view of another value's buffer
  NodeId producer;             // a forward node
  int output_index = 0;        // of the producer
  std::vector<ValueId> reads;  // what backward names: the value, or views of it; ascending
  Dim bytes;
};

// What memory analysis knows of a training graph. Views cost nothing in backward, so they are looked through wherever
// the plan gives them no bytes of their own; a stash that only aliases another's buffer is that other's.
class StashAnalysis {
 public:
  // `plan` is of this graph, made without recompute (values that it lacks have no buffer).
  StashAnalysis(const Graph& graph, const PlanResult& plan);

  const Graph& graph() const { return graph_; }
  // In the order in which forward makes them. Values without bytes of ours (contexts) are none.
  const std::vector<Stash>& stashes() const { return stashes_; }
  const Stash* find(ValueId value) const;  // the stash of the value or of what it is a view of; nullptr: none
  Dim total_bytes() const;

  bool in_forward(NodeId node) const { return position(node) < yield_position_; }
  int32_t position(NodeId node) const { return positions_[node.at()]; }
  // The value that owns the bytes of `value`: itself, or what it is a view of.
  ValueId base(ValueId value) const { return bases_[value.at()]; }
  // Alive in backward at no cost of ours: inputs, parameters, buffers, constants, what the caller holds.
  bool is_free(ValueId value) const;
  Dim bytes(ValueId value) const;  // of the value's own elements

 private:
  const Graph& graph_;
  int32_t yield_position_ = 0;
  std::vector<int32_t> positions_;  // by node
  std::vector<ValueId> bases_;      // by value
  std::vector<bool> free_;          // by base
  std::vector<Stash> stashes_;
  std::map<ValueId, size_t> by_value_;
};

}  // namespace lowtide
