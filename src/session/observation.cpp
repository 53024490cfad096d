#include "session/observation.h"

#include <algorithm>
#include <map>
#include <set>

namespace lowtide {

// Whether somebody reads what a chain of reshapes and transposes up to `value` starts from.
static bool is_read_past(const Graph& graph, ValueId value) {
  while (true) {
    const NodeId producer = graph.value(value).producer;
    if (!graph.is_alive(producer) || !is_view(graph.node(producer).op)) return false;
    const ValueId from = graph.node(producer).inputs[0];
    if (!(numel(graph.type(from).shape) == numel(graph.type(value).shape))) return false;
    if (graph.value(from).users.size() != 1 || graph.is_output(from)) return true;
    value = from;
  }
}

ForwardValues find_forward_values(const Graph& forward, const std::vector<ValueId>& lowered,
                                  const Replacements& replacements) {
  ForwardValues forward_values;
  std::map<ValueId, std::set<ValueId>> merged;  // value → lowered values that it stands for
  for (ValueId value : lowered) {
    forward_values.values.push_back(value ? replacements.now(value) : ValueId{});
    if (forward_values.values.back()) merged[forward_values.values.back()].insert(value);
  }
  std::set<ValueId> taken;
  for (ValueId value : forward_values.values)
    forward_values.share_gradient.push_back(value && merged[value].size() == 1 && !is_read_past(forward, value) &&
                                            taken.insert(value).second);
  return forward_values;
}

std::vector<MappedValue> value_map(const Graph& functional, const ForwardValues& forward_values,
                                   const std::vector<ValueId>& gradients, const Replacements& replacements,
                                   const Graph& graph, const std::vector<ValuePlace>& places) {
  std::set<ValueId> seen;
  for (const ValuePlace& place : places) seen.insert(place.value);
  auto name_of = [&](ValueId value) {
    const ValueId now = value ? replacements.now(value) : ValueId{};
    return seen.contains(now) ? graph.value(now).name : std::string();
  };
  std::vector<MappedValue> result;
  for (size_t i = 0; i < forward_values.values.size(); ++i) {
    const ValueId value = forward_values.values[i];
    const bool has_gradient = forward_values.share_gradient[i] && value.at() < gradients.size();
    result.push_back({functional.value(ValueId{static_cast<int32_t>(i)}).name, name_of(value),
                      has_gradient ? name_of(gradients[value.at()]) : std::string()});
  }
  return result;
}

std::vector<Probe> probes(const Graph& graph, const std::vector<ValuePlace>& places) {
  std::vector<Probe> result;
  for (const ValuePlace& place : places)
    result.push_back({graph.value(place.value).name, place.operand, place.step, place.region});
  return result;
}

}  // namespace lowtide
