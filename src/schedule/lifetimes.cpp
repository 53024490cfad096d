#include "schedule/lifetimes.h"

#include <algorithm>
#include <set>

namespace lowtide {

std::vector<ValueId> module_outputs(const Graph& graph) {
  if (const NodeId yield = graph.yield()) return graph.node(yield).inputs;
  std::vector<ValueId> outputs;
  for (const GraphOutput& output : graph.outputs())
    if (output.kind == OutputKind::kOutput) outputs.push_back(output.value);
  return outputs;
}

std::vector<ValueId> find_owners(const Graph& graph, std::span<const int32_t> buffers) {
  std::vector<ValueId> owners(graph.value_count());
  for (size_t i = 0; i < owners.size(); ++i) owners[i] = ValueId{static_cast<int32_t>(i)};
  const auto buffer = [&](ValueId value) { return value.at() < buffers.size() ? buffers[value.at()] : -1; };
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (!is_view(node.op) || !node.outputs[0]) continue;
    const ValueId from = node.inputs[0], to = node.outputs[0];
    if (buffers.empty() || (buffer(to) >= 0 && buffer(to) == buffer(from))) owners[to.at()] = owners[from.at()];
  }
  return owners;
}

static bool is_repeated_number(const Node& node) {
  if (!has_trait(node.op, Trait::kFiller)) return false;
  return !node.attrs.has("int_value") || node.attrs.dim("int_value").is_constant();
}

static Holder holder_of(const Graph& graph, ValueId value) {
  const NodeId producer = graph.value(value).producer;
  if (!producer) return Holder::kCaller;
  const Node& node = graph.node(producer);
  if (is_yield(node.op)) return Holder::kCaller;
  if (is_repeated_number(node) || graph.type(value).dtype == DType::kContext) return Holder::kNowhere;
  return Holder::kArena;
}

std::vector<ValueId> find_takeovers(const Graph& graph, std::span<const int32_t> buffers) {
  std::vector<ValueId> takeovers(graph.value_count());
  const auto buffer = [&](ValueId value) { return value.at() < buffers.size() ? buffers[value.at()] : -1; };
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (is_view(node.op)) continue;
    for (ValueId output : node.outputs)
      for (ValueId input : node.inputs)
        if (output && input && buffer(output) >= 0 && buffer(output) == buffer(input)) takeovers[output.at()] = input;
  }
  return takeovers;
}

Lifetimes find_lifetimes(const Graph& graph, std::span<const NodeId> order, std::span<const ValueId> takeovers) {
  Lifetimes result{find_owners(graph), std::vector<Life>(graph.value_count())};
  const int32_t end = static_cast<int32_t>(order.size());
  for (const GraphInput& input : graph.inputs())
    result.lives[input.value.at()] = {Holder::kCaller, -1, -1, false, false};
  int32_t forward_end = end;
  std::set<ValueId> inspected;
  for (int32_t i = 0; i < end; ++i) {
    const Node& node = graph.node(order[static_cast<size_t>(i)]);
    if (is_yield(node.op)) forward_end = i;
    if (is_inspection(node.op) && !inspected.insert(node.inputs[0]).second) continue;
    for (ValueId input : node.inputs)
      if (input) result.lives[result.owner(input).at()].last = i;
    for (ValueId output : node.outputs)
      if (output && result.owner(output) == output)
        result.lives[output.at()] = {holder_of(graph, output), i, i, false, false};
  }
  const auto hand_out = [&](ValueId value, Holder holder, int32_t until) {
    Life& life = result.lives[result.owner(value).at()];
    life.last = std::max(life.last, until);
    if (life.holder == Holder::kArena) life.holder = holder;
    life.is_output = life.is_output || holder == Holder::kOutput;
  };
  for (ValueId output : module_outputs(graph)) hand_out(output, Holder::kOutput, end);
  for (const GraphOutput& output : graph.outputs()) {
    if (output.kind == OutputKind::kUpdate) hand_out(output.value, Holder::kArena, forward_end);
    if (output.kind == OutputKind::kGradient) hand_out(output.value, Holder::kGradient, end);
  }
  for (size_t i = 0; i < takeovers.size(); ++i) {
    if (!takeovers[i]) continue;
    Life& taken = result.lives[result.owner(takeovers[i]).at()];
    if (taken.last == result.lives[i].first) taken.is_taken = true;
  }
  return result;
}

}  // namespace lowtide
