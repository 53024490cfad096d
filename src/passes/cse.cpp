#include "passes/cse.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "passes/rewrite.h"

namespace lowtide {

namespace {

bool may_merge(const Node& node) {
  const OpCategory category = info(node.op).category;
  return category != OpCategory::kCall && category != OpCategory::kControl && !has_trait(node.op, Trait::kFreshBytes) &&
         !node.body;
}

std::vector<ValueId> operands(const Node& node) {
  std::vector<ValueId> inputs = node.inputs;
  if (has_trait(node.op, Trait::kCommutative)) std::sort(inputs.begin(), inputs.end());
  return inputs;
}

size_t hash(const Node& node) {
  size_t result = static_cast<size_t>(node.op);
  const auto mix = [&](size_t piece) { result = (result ^ piece) * 0x9e3779b97f4a7c15u + (result >> 29); };
  for (ValueId input : operands(node)) mix(std::hash<ValueId>()(input));
  // The large lists of attributes rarely tell nodes apart; the comparison does.
  mix(node.attrs.size());
  return result;
}

bool same_outputs(const Graph& graph, const Node& a, const Node& b) {
  if (a.outputs.size() != b.outputs.size()) return false;
  for (size_t i = 0; i < a.outputs.size(); ++i) {
    // An output that the first lacks cannot stand for the second's.
    if (!b.outputs[i]) continue;
    if (!a.outputs[i] || graph.type(a.outputs[i]) != graph.type(b.outputs[i])) return false;
  }
  return true;
}

// 0.0 == -0.0, and they are two numbers.
bool same_attrs(const Attrs& a, const Attrs& b) {
  const auto same_sign = [](const auto& one, const auto& other) {
    const double* real = std::get_if<double>(&one.second);
    return real == nullptr || std::signbit(*real) == std::signbit(std::get<double>(other.second));
  };
  return a == b && std::equal(a.begin(), a.end(), b.begin(), same_sign);
}

bool same_value(const Graph& graph, const Node& a, const Node& b) {
  return a.op == b.op && a.target == b.target && same_attrs(a.attrs, b.attrs) && operands(a) == operands(b) &&
         same_outputs(graph, a, b);
}

// The user sees its bytes, through a view perhaps, and may write into them.
bool is_shown(const Graph& graph, ValueId value) {
  const auto shows = [&](NodeId user) {
    const Node& node = graph.node(user);
    return is_view(node.op) && node.outputs[0] && is_shown(graph, node.outputs[0]);
  };
  const std::vector<NodeId>& users = graph.value(value).users;
  return is_module_output(graph, value) || std::any_of(users.begin(), users.end(), shows);
}

bool are_two_module_outputs(const Graph& graph, const Node& a, const Node& b) {
  if (is_view(a.op)) return false;  // of one value: the same bytes before and after
  for (size_t i = 0; i < a.outputs.size(); ++i)
    if (a.outputs[i] && b.outputs[i] && is_shown(graph, a.outputs[i]) && is_shown(graph, b.outputs[i])) return true;
  return false;
}

}  // namespace

bool cse(Graph& graph) {
  std::unordered_multimap<size_t, NodeId> seen;
  std::vector<bool> is_backward(graph.node_capacity());
  bool changed = false, backward = false;
  const auto is_stashed = [&](const Node& node) {
    return std::all_of(node.outputs.begin(), node.outputs.end(), [&](ValueId output) {
      if (!output) return true;
      const std::vector<NodeId>& users = graph.value(output).users;
      return std::any_of(users.begin(), users.end(), [&](NodeId user) { return is_backward[user.at()]; });
    });
  };
  {
    bool after = false;
    for (NodeId id : graph.order()) {
      is_backward[id.at()] = after;
      after = after || is_yield(graph.node(id).op);
    }
  }
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order) {
    const Node& node = graph.node(id);
    backward = is_backward[id.at()];
    if (!may_merge(node)) continue;
    const size_t key = hash(node);
    const auto [begin, end] = seen.equal_range(key);
    const auto first = std::find_if(begin, end, [&](const auto& entry) {
      const Node& other = graph.node(entry.second);
      const bool crosses = backward && !is_backward[entry.second.at()];
      return same_value(graph, other, node) && !are_two_module_outputs(graph, other, node) &&
             (!crosses || is_view(node.op) || is_stashed(other));
    });
    if (first == end) {
      seen.emplace(key, id);
      continue;
    }
    const std::vector<ValueId> kept = graph.node(first->second).outputs, outputs = node.outputs;
    for (size_t i = 0; i < outputs.size(); ++i)
      if (outputs[i]) graph.replace_uses(outputs[i], kept[i]);
    graph.remove(id);
    changed = true;
  }
  return changed;
}

}  // namespace lowtide
