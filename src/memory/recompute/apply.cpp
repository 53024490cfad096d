#include <algorithm>
#include <map>

#include "memory/recompute/recompute.h"

namespace lowtide {

namespace {

// Makes forward values again in backward, each at most once, right before the node that reads it first.
class Rewriter {
 public:
  Rewriter(Graph& graph, const MemoryContext& context, std::span<const Candidate* const> chosen)
      : graph_(graph), stash_(context.stash) {
    for (const Candidate* candidate : chosen) {
      for (const GivenUp& output : candidate->outputs) given_up_.insert(output.value);
      for (ValueId value : candidate->kept) kept_.insert(value);
      if (is_call(graph.node(candidate->entry).op)) calls_.insert(candidate->entry);
    }
  }

  void run() {
    const std::vector<NodeId> order = graph_.order();
    bool backward = false;
    for (NodeId id : order) {
      if (backward) {
        new_order_.reserve(order.size() * 2);
        rewrite_reader(id);
      }
      new_order_.push_back(id);
      backward = backward || is_yield(graph_.node(id).op);
    }
    graph_.set_order(new_order_);
    drop_unread();
  }

 private:
  // Forward values that are not there in backward any more.
  bool is_missing(ValueId value) const {
    // A view that backward takes is made there from what is again.
    if (value.at() >= original_values_ || !stash_.in_forward(graph_.value(value).producer)) return false;
    const ValueId owner = stash_.base(value);
    const NodeId producer = graph_.value(owner).producer;
    if (!producer || !stash_.in_forward(producer) || stash_.is_free(owner)) return false;
    if (graph_.type(owner).dtype == DType::kContext) return calls_.contains(producer);
    if (given_up_.contains(owner)) return true;
    return !stash_.find(owner) && !kept_.contains(owner);
  }

  void rewrite_reader(NodeId reader) {
    for (size_t i = 0; i < graph_.node(reader).inputs.size(); ++i) {
      const ValueId value = graph_.node(reader).inputs[i];
      if (value && is_missing(value)) graph_.set_operand(reader, i, again(value));
    }
  }

  ValueId again(ValueId value) {
    const NodeId made = graph_.value(value).producer;
    const NodeId copy = clone(made);
    return graph_.node(copy).outputs[static_cast<size_t>(graph_.value(value).output_index)];
  }

  NodeId clone(NodeId made) {
    if (const auto at = clones_.find(made); at != clones_.end()) return at->second;
    std::vector<ValueId> inputs = operands_again(graph_.node(made));
    for (ValueId& input : inputs)
      if (input && is_missing(input)) input = again(input);
    const Node& node = graph_.node(made);
    std::vector<TensorType> types;
    std::vector<bool> wanted;
    std::vector<std::string> names;
    for (ValueId output : node.outputs) {
      types.push_back(output ? graph_.type(output) : TensorType{});
      wanted.push_back(output.valid());
      names.push_back(output ? graph_.value(output).name + "_recompute" : std::string());
    }
    Origin origin = node.origin;
    origin.kind = OriginKind::kRecompute;
    const NodeId copy = graph_.add_node(node.op, std::move(inputs), std::move(types), node.attrs, std::move(origin), {},
                                        std::move(names), std::move(wanted));
    graph_.edit(copy).target = graph_.node(made).target;
    if (graph_.node(made).body) graph_.edit(copy).body = std::make_unique<Graph>(graph_.node(made).body->clone());
    new_order_.push_back(copy);
    copies_.push_back(copy);
    return clones_[made] = copy;
  }

  // Outputs that nobody reads are not made, neither again nor, if only backward read them, in forward.
  void drop_unread() {
    std::vector<NodeId> touched = copies_;
    for (const auto& [made, copy] : clones_) touched.push_back(made);
    for (NodeId id : touched) {
      const std::vector<ValueId> outputs = graph_.node(id).outputs;
      for (size_t i = 0; i < outputs.size(); ++i) {
        if (!outputs[i] || !graph_.value(outputs[i]).users.empty() || graph_.is_output(outputs[i])) continue;
        // A call has a place for its context only where somebody wants one.
        const bool is_context = graph_.type(outputs[i]).dtype == DType::kContext;
        graph_.drop_output(id, i);
        if (is_context) graph_.drop_last_output(id);
      }
    }
    // Originals that only backward had needed, and what only they had needed.
    const std::vector<NodeId> order = graph_.order();
    for (size_t i = order.size(); i-- > 0;) {
      const Node& node = graph_.node(order[i]);
      if (is_call(node.op) || has_trait(node.op, Trait::kEffect) || node.outputs.empty()) continue;
      const bool is_read = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId output) {
        return output && (!graph_.value(output).users.empty() || graph_.is_output(output));
      });
      if (!is_read) graph_.remove(order[i]);
    }
  }

  Graph& graph_;
  const StashAnalysis& stash_;
  const size_t original_values_ = stash_.graph().value_count();
  std::set<ValueId> given_up_, kept_;
  std::set<NodeId> calls_;
  std::map<NodeId, NodeId> clones_;
  std::vector<NodeId> copies_;
  std::vector<NodeId> new_order_;
};

}  // namespace

void run_again(Graph& graph, const MemoryContext& context, std::span<const Candidate* const> chosen) {
  Rewriter(graph, context, chosen).run();
}

}  // namespace lowtide
