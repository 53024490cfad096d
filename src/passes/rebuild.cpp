#include "passes/rebuild.h"

#include <map>
#include <set>

#include "passes/rewrite.h"

namespace lowtide {

namespace {

bool is_rebuilt(Op op) {
  return op == Op::kLayerNormalization || op == Op::kSimplifiedLayerNormalization || op == Op::kSwish;
}

class Rebuilder {
 public:
  explicit Rebuilder(Graph& graph) : graph_(graph) {
    bool backward = false;
    for (NodeId id : graph.order()) {
      if (backward) in_backward_.insert(id);
      backward = backward || graph.node(id).op == Op::kYieldOp;
    }
  }

  bool run() {
    bool changed = false;
    const std::vector<NodeId> order = graph_.order();
    // Later nodes first: what a clone reads may itself be rebuilt.
    for (size_t i = order.size(); i-- > 0;)
      if (!in_backward_.contains(order[i]) && is_rebuilt(graph_.node(order[i]).op))
        changed = rebuild_node(order[i]) || changed;
    return changed;
  }

 private:
  // The value and the forward views of it.
  void collect_views(ValueId value, std::vector<ValueId>& values) const {
    values.push_back(value);
    for (NodeId user : graph_.value(value).users)
      if (!in_backward_.contains(user) && is_view(graph_.node(user).op))
        collect_views(graph_.node(user).outputs[0], values);
  }

  bool is_kept(ValueId value) const {
    const ValueId base = base_of_views(graph_, value);
    if (graph_.find_input(base) != nullptr) return true;
    if (is_module_output(graph_, base)) return true;
    std::vector<ValueId> values;
    collect_views(base, values);
    for (ValueId each : values)
      for (NodeId user : graph_.value(each).users)
        if (in_backward_.contains(user)) return true;
    return false;
  }

  bool rebuild_node(NodeId id) {
    const ValueId y = graph_.node(id).outputs[0];
    if (!y) return false;
    std::vector<ValueId> values;
    collect_views(y, values);
    // A module output is kept by the user: nothing to save.
    for (ValueId value : values)
      if (is_module_output(graph_, value)) return false;
    std::map<ValueId, std::vector<NodeId>> readers;
    for (ValueId value : values)
      for (NodeId user : graph_.value(value).users)
        if (in_backward_.contains(user)) readers[value].push_back(user);
    if (readers.empty()) return false;
    for (ValueId input : graph_.node(id).inputs)
      if (input && !is_kept(input)) return false;
    const NodeId first = first_reader(readers);
    std::map<ValueId, ValueId> clones;
    for (const auto& [value, users] : readers) {
      const ValueId again = clone(value, y, first, clones);
      for (NodeId user : users)
        for (size_t i = 0; i < graph_.node(user).inputs.size(); ++i)
          if (graph_.node(user).inputs[i] == value) graph_.set_operand(user, i, again);
    }
    return true;
  }

  NodeId first_reader(const std::map<ValueId, std::vector<NodeId>>& readers) const {
    std::set<NodeId> all;
    for (const auto& [value, users] : readers) all.insert(users.begin(), users.end());
    for (NodeId id : graph_.order())
      if (all.contains(id)) return id;
    return {};
  }

  // `value` again, right before `first`: a clone of the node that made it, through the views that lead to it.
  ValueId clone(ValueId value, ValueId y, NodeId first, std::map<ValueId, ValueId>& clones) {
    if (auto at = clones.find(value); at != clones.end()) return at->second;
    const NodeId made = graph_.value(value).producer;
    std::vector<ValueId> inputs = graph_.node(made).inputs;
    if (value != y) inputs[0] = clone(inputs[0], y, first, clones);
    const Node& node = graph_.node(made);
    std::vector<TensorType> types;
    std::vector<bool> wanted;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      types.push_back(i == 0 ? graph_.type(value) : TensorType{});
      wanted.push_back(i == 0);
    }
    Origin origin = node.origin;
    origin.kind = OriginKind::kRecompute;
    const NodeId copy = graph_.add_node(node.op, std::move(inputs), std::move(types), node.attrs, std::move(origin),
                                        first, {graph_.value(value).name + "_rebuilt"}, std::move(wanted));
    in_backward_.insert(copy);
    return clones[value] = graph_.node(copy).outputs[0];
  }

  Graph& graph_;
  std::set<NodeId> in_backward_;
};

}  // namespace

bool rebuild(Graph& graph) { return graph.yield() && Rebuilder(graph).run(); }

}  // namespace lowtide
