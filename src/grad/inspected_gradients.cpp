#include "grad/inspected_gradients.h"

#include <algorithm>

#include "grad/needs.h"

namespace lowtide {

InspectedGradients::InspectedGradients(Builder& builder, Sweep& sweep, const std::vector<bool>& needs,
                                       const std::vector<ValueId>& sources)
    : graph_(builder.graph()), sweep_(sweep) {
  for (NodeId id : graph_.order()) {
    const Node& node = graph_.node(id);
    if (!is_inspection(node.op)) continue;
    inspections_.resize(graph_.value_count());
    inspections_[node.inputs[0].at()].push_back(id);
  }
  if (inspections_.empty()) return;
  for (ValueId source : sources) reached_from_.push_back(reached_by_gradient(graph_, needs, {source}));
  find_kept();
  std::vector<bool> kept_needs(graph_.value_count());
  for (NodeId id : graph_.order())
    if (is_kept_[id.at()])
      for (ValueId output : graph_.node(id).outputs)
        if (output) kept_needs[output.at()] = needs[output.at()];
  kept_sweep_.emplace(builder, std::move(kept_needs));
}

// Nodes that lead to nothing but inspections and the first operand of SameGradient.
void InspectedGradients::find_kept() {
  is_kept_.assign(graph_.node_capacity(), false);
  const std::vector<NodeId>& order = graph_.order();
  for (auto at = order.rbegin(); at != order.rend(); ++at) {
    const Node& node = graph_.node(*at);
    const auto is_unread = [&](ValueId output) {
      if (!output) return true;
      const std::vector<NodeId>& users = graph_.value(output).users;
      return !graph_.is_output(output) && std::all_of(users.begin(), users.end(), [&](NodeId user) {
        const Node& reader = graph_.node(user);
        return is_kept_[user.at()] || is_inspection(reader.op) ||
               (is_gradient_tie(reader.op) && reader.inputs[1] != output);
      });
    };
    is_kept_[at->at()] = !node.outputs.empty() && std::all_of(node.outputs.begin(), node.outputs.end(), is_unread);
  }
}

void InspectedGradients::visit(NodeId id) {
  if (inspections_.empty()) return;
  const Node& node = graph_.node(id);
  if (is_gradient_tie(node.op)) {
    const ValueId before = node.inputs[0], grad = sweep_.total(node.inputs[1]);
    if (grad && kept_sweep_->needs(before)) kept_sweep_->add(before, grad, gradient_origin(node.origin));
    return;
  }
  Sweep& sweep = is_kept_[id.at()] ? *kept_sweep_ : sweep_;
  for (ValueId output : node.outputs)
    if (output) inspect(output, sweep.total(output));
  if (is_kept_[id.at()]) kept_sweep_->visit(id);
}

static int64_t tensor(const Node& inspection) {
  return inspection.attrs.has("tensor") ? inspection.attrs.dim("tensor").constant() : 0;
}

void InspectedGradients::inspect(ValueId value, ValueId grad) {
  if (!grad || inspections_.empty()) return;
  // PyTorch has the gradient of a view before that of what it is a view of.
  std::vector<NodeId> inspections = inspections_[value.at()];
  std::stable_sort(inspections.begin(), inspections.end(),
                   [&](NodeId a, NodeId b) { return tensor(graph_.node(b)) < tensor(graph_.node(a)); });
  for (NodeId id : inspections) {
    const Node& node = graph_.node(id);
    std::string name = node.attrs.s("name");
    constexpr std::string_view kForward = "_forward";
    if (name.ends_with(kForward)) name.resize(name.size() - kForward.size());
    Attrs attrs{{"name", name + "_backward"}, {"record", node.attrs.dim("record")}};
    std::vector<Dim> sources;
    for (size_t i = 0; i < reached_from_.size(); ++i)
      if (reached_from_[i][value.at()]) sources.push_back(static_cast<int64_t>(i));
    if (!sources.empty()) attrs.set("sources", std::move(sources));
    graph_.add_node(Op::kInspect, {grad}, {}, std::move(attrs), gradient_origin(node.origin));
  }
}

}  // namespace lowtide
