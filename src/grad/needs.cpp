#include "grad/needs.h"

#include <algorithm>

namespace lowtide {

static bool any_of(const std::vector<ValueId>& values, const std::vector<bool>& marks) {
  return std::any_of(values.begin(), values.end(), [&](ValueId value) { return value && marks[value.at()]; });
}

ValueId holder_of_gradient(const Graph& forward, const GraphInput& input) {
  if (input.requires_grad)
    for (const GraphOutput& output : forward.outputs())
      if (output.kind == OutputKind::kUpdate && output.target == input.value) return output.value;
  return input.value;
}

std::vector<bool> needs_gradient(const Graph& forward) {
  std::vector<bool> needs(forward.value_count());
  for (const GraphInput& input : forward.inputs())
    for (ValueId value : {input.value, holder_of_gradient(forward, input)})
      needs[value.at()] = input.requires_grad && takes_gradient(forward.type(value).dtype);
  for (NodeId id : forward.order()) {
    const Node& node = forward.node(id);
    if (has_trait(node.op, Trait::kBlocksGradient) || !any_of(node.inputs, needs)) continue;
    for (ValueId output : node.outputs)
      if (output) needs[output.at()] = takes_gradient(forward.type(output).dtype);
  }
  return needs;
}

std::vector<bool> reached_by_gradient(const Graph& forward, const std::vector<bool>& needs,
                                      const std::vector<ValueId>& sources) {
  std::vector<bool> reached(forward.value_count());
  for (ValueId source : sources) reached[source.at()] = needs[source.at()];
  for (auto at = forward.order().rbegin(); at != forward.order().rend(); ++at) {
    const Node& node = forward.node(*at);
    if (has_trait(node.op, Trait::kBlocksGradient) || !any_of(node.outputs, reached)) continue;
    for (ValueId input : node.inputs)
      if (input && needs[input.at()]) reached[input.at()] = true;
  }
  return reached;
}

}  // namespace lowtide
