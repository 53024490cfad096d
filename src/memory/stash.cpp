#include "memory/stash.h"

#include <algorithm>

#include "schedule/lifetimes.h"

namespace lowtide {

namespace {

// Where PyTorch's own saved tensors may lie: the inputs and outputs of the call that a CallGrad differentiates.
bool is_held_by_context(const Node& reader, size_t operand) {
  return is_call_gradient(reader.op) && operand > static_cast<size_t>(reader.attrs.i("num_grads"));
}

}  // namespace

StashAnalysis::StashAnalysis(const Graph& graph, const PlanResult& plan, std::set<ValueId> rematerialised)
    : graph_(graph), rematerialised_(std::move(rematerialised)) {
  const std::vector<NodeId>& order = graph.order();
  positions_.assign(graph.node_capacity(), -1);
  yield_position_ = static_cast<int32_t>(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    positions_[order[i].at()] = static_cast<int32_t>(i);
    if (is_yield(graph.node(order[i]).op)) yield_position_ = static_cast<int32_t>(i);
  }
  auto buffer = [&](ValueId value) {
    return value.at() < plan.value_buffers.size() ? plan.value_buffers[value.at()] : -1;
  };
  bases_ = find_owners(graph, plan.value_buffers);
  free_.assign(graph.value_count(), false);
  for (const GraphInput& input : graph.inputs()) free_[input.value.at()] = true;
  // What forward writes back is another value by the time of backward.
  std::set<ValueId> written;
  for (const GraphOutput& output : graph.outputs())
    if (output.kind == OutputKind::kUpdate) written.insert(output.target);
  for (size_t i = 0; i < bases_.size(); ++i) {
    const int32_t at = buffer(ValueId{static_cast<int32_t>(i)});
    if (at < 0) continue;
    const BufferKind kind = plan.program.buffers[static_cast<size_t>(at)].kind;
    free_[i] = kind != BufferKind::kArena && kind != BufferKind::kGradient;
  }
  for (ValueId value : written) free_[value.at()] = false;

  std::map<ValueId, std::set<ValueId>> reads;
  std::set<ValueId> pinned;
  for (size_t i = static_cast<size_t>(yield_position_) + 1; i < order.size(); ++i) {
    const Node& reader = graph.node(order[i]);
    for (size_t k = 0; k < reader.inputs.size(); ++k) {
      const ValueId value = reader.inputs[k];
      if (!value) continue;
      const ValueId owner = base(value);
      const NodeId producer = graph.value(owner).producer;
      if (!producer || !in_forward(producer) || is_free(owner) || rematerialised_.contains(owner)) continue;
      if (graph.type(owner).dtype == DType::kContext) continue;
      // A view that backward takes is itself the reader.
      if (in_forward(graph.value(value).producer)) reads[owner].insert(value);
      if (is_held_by_context(reader, k)) pinned.insert(owner);
    }
  }
  for (const auto& [owner, values] : reads) {
    Stash stash;
    stash.value = owner;
    stash.producer = graph.value(owner).producer;
    stash.output_index = graph.value(owner).output_index;
    stash.reads.assign(values.begin(), values.end());
    stash.bytes = bytes(owner);
    stash.pinned = pinned.contains(owner);
    stashes_.push_back(std::move(stash));
  }
  std::sort(stashes_.begin(), stashes_.end(), [&](const Stash& a, const Stash& b) {
    return std::pair(position(a.producer), a.output_index) < std::pair(position(b.producer), b.output_index);
  });
  for (size_t i = 0; i < stashes_.size(); ++i) by_value_[stashes_[i].value] = i;
}

const Stash* StashAnalysis::find(ValueId value) const {
  const auto at = by_value_.find(base(value));
  return at == by_value_.end() ? nullptr : &stashes_[at->second];
}

Dim StashAnalysis::total_bytes() const {
  Dim total = 0;
  for (const Stash& stash : stashes_) total = total + stash.bytes;
  return total;
}

Dim StashAnalysis::bytes(ValueId value) const {
  const TensorType& type = graph_.type(value);
  return numel(type.shape) * Dim(size_bytes(type.dtype));
}

}  // namespace lowtide
