#include "session/gradient_sources.h"

#include <algorithm>

#include "base/check.h"
#include "grad/needs.h"

namespace lowtide {

std::vector<std::vector<int>> gradient_sources(const Graph& training) {
  std::vector<std::vector<int>> result(training.inputs().size());
  const NodeId yield = training.yield();
  if (!yield) return result;
  std::vector<bool> comes_from;  // by value
  for (ValueId incoming : training.node(yield).outputs) {
    if (!incoming) continue;
    comes_from.assign(training.value_count(), false);
    comes_from[incoming.at()] = true;
    for (NodeId id : training.order()) {
      const Node& node = training.node(id);
      const bool does = std::any_of(node.inputs.begin(), node.inputs.end(),
                                    [&](ValueId input) { return input && comes_from[input.at()]; });
      for (ValueId output : node.outputs)
        if (does && output && !is_yield(node.op)) comes_from[output.at()] = true;
    }
    for (const GraphOutput& output : training.outputs())
      if (output.kind == OutputKind::kGradient && comes_from[output.value.at()])
        result[static_cast<size_t>(training.value(output.target).output_index)].push_back(
            training.value(incoming).output_index);
  }
  return result;
}

std::vector<std::vector<int>> outputs_led_to(const Graph& forward) {
  std::vector<std::vector<int>> result(forward.inputs().size());
  const std::vector<bool> needs = needs_gradient(forward);
  int index = 0;
  for (const GraphOutput& output : forward.outputs()) {
    if (output.kind != OutputKind::kOutput) continue;
    const std::vector<bool> reached = reached_by_gradient(forward, needs, {output.value});
    for (size_t i = 0; i < result.size(); ++i)
      if (reached[holder_of_gradient(forward, forward.inputs()[i]).at()]) result[i].push_back(index);
    ++index;
  }
  return result;
}

std::vector<std::vector<int>> gradient_sources(const Graph& training, const std::vector<std::vector<int>>& outputs) {
  LT_CHECK(outputs.size() == training.inputs().size(), outputs.size(), " inputs of forward, ", training.inputs().size(),
           " of the training graph");
  std::vector<std::vector<int>> result(outputs.size());
  const NodeId yield = training.yield();
  if (!yield) return result;
  const std::vector<int64_t> grads = training.node(yield).attrs.is("grads");
  for (size_t source = 0; source < grads.size(); ++source)
    for (size_t i = 0; i < outputs.size(); ++i)
      if (std::any_of(outputs[i].begin(), outputs[i].end(), [&](int output) { return grads[source] == output; }))
        result[i].push_back(static_cast<int>(source));
  return result;
}

std::vector<int> gradient_reads(const Graph& training) {
  std::vector<bool> needed(training.value_count());
  for (const GraphOutput& output : training.outputs())
    if (output.kind == OutputKind::kGradient) needed[output.value.at()] = true;
  const std::vector<NodeId>& order = training.order();
  for (auto id = order.rbegin(); id != order.rend(); ++id) {
    const Node& node = training.node(*id);
    if (is_yield(node.op)) continue;
    // Statistics that an op hands on updated make only their updates.
    const auto first_update = static_cast<size_t>(info(node.op).first_update);
    bool makes_value = false, makes_update = false;
    for (size_t i = 0; i < node.outputs.size(); ++i)
      if (node.outputs[i] && needed[node.outputs[i].at()]) (i < first_update ? makes_value : makes_update) = true;
    if (!makes_value && !makes_update) continue;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (node.inputs[i] && (i < first_update || makes_update)) needed[node.inputs[i].at()] = true;
  }
  std::vector<int> reads;
  for (size_t i = 0; i < training.inputs().size(); ++i)
    if (needed[training.inputs()[i].value.at()]) reads.push_back(static_cast<int>(i));
  return reads;
}

std::vector<bool> existing_gradients(const Graph& training, const std::vector<bool>& given,
                                     const std::set<std::pair<int64_t, int64_t>>& missing) {
  // PyTorch calls the backward of every function that a gradient could reach, with zeros where none does. It comes
  // without any gradient too, from a function behind this graph that gave none.
  const bool is_any_given = std::find(given.begin(), given.end(), true) != given.end();
  std::vector<bool> reached(training.value_count()), exists(training.value_count());
  for (NodeId id : training.order()) {
    const Node& node = training.node(id);
    const auto any = [&](const std::vector<bool>& values) {
      return std::any_of(node.inputs.begin(), node.inputs.end(),
                         [&](ValueId input) { return input && values[input.at()]; });
    };
    const bool is_reached = any(reached), has_gradient = any(exists);
    // A CallGrad's first operand is the context that the call makes.
    const Node* call = is_call_gradient(node.op) ? &training.node(training.value(node.inputs[0]).producer) : nullptr;
    const bool is_function = call != nullptr && is_custom_function(call->op);
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (!node.outputs[i]) continue;
      const size_t output = node.outputs[i].at();
      reached[output] = is_yield(node.op) ? given.at(i) || !is_any_given : is_reached;
      exists[output] = !is_function ? is_yield(node.op) ? given.at(i) : has_gradient
                                    : is_reached && !missing.contains({call->attrs.i("call"), static_cast<int64_t>(i)});
    }
  }
  std::vector<bool> result(training.inputs().size());
  for (const GraphOutput& output : training.outputs())
    if (output.kind == OutputKind::kGradient)
      result[static_cast<size_t>(training.value(output.target).output_index)] = exists[output.value.at()];
  return result;
}

}  // namespace lowtide
