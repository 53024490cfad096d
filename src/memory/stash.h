// Activations kept for backward, as a plan made without recompute keeps them.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "emit/plan.h"
#include "ir/graph.h"

namespace lowtide {

// Bytes made in forward that backward reads: under the name of the value that owns them, or of views of it.
struct Stash {
  ValueId value;               // owns the bytes: no view of another value's buffer
  NodeId producer;             // a forward node
  int output_index = 0;        // of the producer
  std::vector<ValueId> reads;  // what backward names: the value, or views of it; ascending
  Dim bytes;
  // An autograd context of PyTorch's may hold views of these bytes: they must stay as long as it does.
  bool pinned = false;
};

// What memory analysis knows of a training graph. Views cost nothing in backward, so they are looked through wherever
// the plan gives them no bytes of their own; a stash that only aliases another's buffer is that other's.
class StashAnalysis {
 public:
  // `plan` is of this graph, made without recompute (values that it lacks have no buffer). `rematerialised`: values
  // (owners of their bytes) that are made again in backward in any case: alive there, and no stash.
  StashAnalysis(const Graph& graph, const PlanResult& plan, std::set<ValueId> rematerialised = {});

  const Graph& graph() const { return graph_; }
  // In the order in which forward makes them. Values without bytes of ours (contexts) are none.
  const std::vector<Stash>& stashes() const { return stashes_; }
  const Stash* find(ValueId value) const;  // the stash of the value or of what it is a view of; nullptr: none
  Dim total_bytes() const;

  bool in_forward(NodeId node) const { return node.valid() && position(node) >= 0 && position(node) < yield_position_; }
  int32_t position(NodeId node) const { return node.at() < positions_.size() ? positions_[node.at()] : -1; }
  // The value that owns the bytes of `value`: itself, or what it is a view of.
  ValueId base(ValueId value) const { return bases_[value.at()]; }
  // Alive in backward at no cost of ours: inputs, parameters, buffers, constants, what the caller holds.
  bool is_free(ValueId value) const { return free_[base(value).at()]; }
  bool is_rematerialised(ValueId value) const { return rematerialised_.contains(base(value)); }
  // There to be read in backward, whoever reads it.
  bool is_alive(ValueId value) const { return is_free(value) || is_rematerialised(value) || find(value) != nullptr; }
  Dim bytes(ValueId value) const;  // of the value's own elements

 private:
  const Graph& graph_;
  int32_t yield_position_ = 0;
  std::vector<int32_t> positions_;  // by node
  std::vector<ValueId> bases_;      // by value
  std::vector<bool> free_;          // by base
  std::vector<Stash> stashes_;
  std::map<ValueId, size_t> by_value_;
  std::set<ValueId> rematerialised_;
};

}  // namespace lowtide
