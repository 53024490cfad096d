#include "grad/gradient.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "grad/needs.h"
#include "grad/pieces.h"
#include "ir/views.h"
#include "ops/builder.h"
#include "ops/inference.h"
#include "ops/rule.h"

namespace lowtide {

namespace {

// Gradients are summed in the order in which they appear, which is fixed: outputs of the module in their order, then
// the forward nodes from last to first, operands in their order, slices last.
struct Accumulated {
  ValueId sum;
  std::vector<GradientPiece> pieces;
  Origin origin;  // of the latest contribution
};

class GradientBuilder {
 public:
  explicit GradientBuilder(const Graph& forward)
      : graph_(forward.clone()), builder_(graph_), needs_(needs_gradient(graph_)), gradients_(graph_.value_count()) {}

  GradientGraph build(const std::vector<bool>& output_needs_grad) {
    const std::vector<NodeId> forward_order = graph_.order();
    std::vector<size_t> sources;
    const std::vector<ValueId> outputs = module_outputs(output_needs_grad, sources);
    std::vector<ValueId> source_values;
    for (size_t source : sources) source_values.push_back(outputs[source]);
    const std::vector<bool> reached = reached_by_gradient(graph_, needs_, source_values);
    find_inspected(forward_order, source_values);
    add_yield(outputs, sources);
    for (auto at = forward_order.rbegin(); at != forward_order.rend(); ++at) visit(*at);
    set_outputs(reached);
    std::vector<ValueId> totals;
    for (const Accumulated& gradient : gradients_) totals.push_back(gradient.pieces.empty() ? gradient.sum : ValueId{});
    return {std::move(graph_), std::move(totals)};
  }

 private:
  // The module's outputs, and the indices of those that get a gradient.
  std::vector<ValueId> module_outputs(const std::vector<bool>& output_needs_grad, std::vector<size_t>& sources) const {
    std::vector<ValueId> outputs;
    for (const GraphOutput& output : graph_.outputs())
      if (output.kind == OutputKind::kOutput) outputs.push_back(output.value);
    LT_USER_CHECK(ErrorKind::kInvalidArgument, output_needs_grad.empty() || output_needs_grad.size() == outputs.size(),
                  "output_needs_grad has ", output_needs_grad.size(), " entries, @", graph_.name(), " has ",
                  outputs.size(), " outputs");
    for (size_t i = 0; i < outputs.size(); ++i)
      if (needs_[outputs[i].at()] && (output_needs_grad.empty() || output_needs_grad[i])) sources.push_back(i);
    return outputs;
  }

  void add_yield(const std::vector<ValueId>& outputs, const std::vector<size_t>& sources) {
    std::vector<Dim> grads;
    std::vector<TensorType> types;
    std::vector<std::string> names;
    for (size_t source : sources) {
      grads.push_back(static_cast<int64_t>(source));
      types.push_back(graph_.type(outputs[source]));
      names.push_back(grad_name(outputs[source]));
    }
    const NodeId yield = graph_.add_node(Op::kYieldOp, outputs, types, {{"grads", grads}}, {}, {}, names);
    for (size_t i = 0; i < sources.size(); ++i)
      add(outputs[sources[i]], graph_.node(yield).outputs[i], producer_origin(outputs[sources[i]]));
  }

  // Which values are inspected, which outputs lead to their gradients, and which nodes are there for inspection only:
  // those that lead to nothing but inspections and the first operand of SameGradient.
  void find_inspected(const std::vector<NodeId>& order, const std::vector<ValueId>& sources) {
    inspections_.resize(graph_.value_count());
    is_shadow_.assign(graph_.node_capacity(), false);
    bool any = false;
    for (NodeId id : order) {
      const Node& node = graph_.node(id);
      if (node.op != Op::kInspect) continue;
      inspections_[node.inputs[0].at()].push_back(id);
      any = true;
    }
    if (!any) return;
    for (ValueId source : sources) reached_from_.push_back(reached_by_gradient(graph_, needs_, {source}));
    for (auto at = order.rbegin(); at != order.rend(); ++at) {
      const Node& node = graph_.node(*at);
      const auto is_unread = [&](ValueId output) {
        if (!output) return true;
        const std::vector<NodeId>& users = graph_.value(output).users;
        return !graph_.is_output(output) && std::all_of(users.begin(), users.end(), [&](NodeId user) {
          const Node& reader = graph_.node(user);
          return is_shadow_[user.at()] || reader.op == Op::kInspect ||
                 (reader.op == Op::kSameGradient && reader.inputs[1] != output);
        });
      };
      is_shadow_[at->at()] = !node.outputs.empty() && std::all_of(node.outputs.begin(), node.outputs.end(), is_unread);
    }
  }

  int64_t tensor(NodeId inspection) const {
    const Node& node = graph_.node(inspection);
    return node.attrs.has("tensor") ? node.attrs.dim("tensor").constant() : 0;
  }

  // The gradient of a value is known: who looked at the value looks at it too.
  void inspect_gradient(ValueId value, ValueId grad) {
    if (!grad) return;
    // PyTorch has the gradient of a view before that of what it is a view of.
    std::vector<NodeId> inspections = inspections_[value.at()];
    std::stable_sort(inspections.begin(), inspections.end(), [&](NodeId a, NodeId b) { return tensor(b) < tensor(a); });
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

  void visit(NodeId id) {
    const Node& node = graph_.node(id);
    if (node.op == Op::kSameGradient) {
      const ValueId grad = total(node.inputs[1]);
      if (grad && needs_[node.inputs[0].at()]) add(node.inputs[0], grad, gradient_origin(node.origin));
      return;
    }
    std::vector<ValueId> output_grads;
    for (ValueId output : node.outputs) {
      output_grads.push_back(output ? total(output) : ValueId{});
      if (output) inspect_gradient(output, output_grads.back());
    }
    if (std::none_of(output_grads.begin(), output_grads.end(), [](ValueId grad) { return grad.valid(); })) return;
    const Origin origin = gradient_origin(node.origin);
    builder_.set_origin(origin);
    if (node.op == Op::kSlice && node.attrs.dim("step").is(1) && !is_shadow_[id.at()]) {
      Accumulated& into = gradients_[node.inputs[0].at()];
      into.pieces.push_back({output_grads[0], node.attrs.i("axis"), node.attrs.dim("start"), node.attrs.dim("end")});
      into.origin = origin;
      return;
    }
    const GradFunction rule = grad_function(node.op);
    LT_CHECK(rule != nullptr, "a gradient flows into ", with_origin(std::string(name(node.op)), node.origin),
             ", which has no rule");

    // What is there for inspection has no gradient to give to the rest of the graph.
    const auto takes = [&](ValueId input) {
      const NodeId producer = graph_.value(input).producer;
      return !is_shadow_[id.at()] || (producer && is_shadow_[producer.at()]);
    };
    std::vector<bool> wanted;
    for (ValueId input : node.inputs) wanted.push_back(input && needs_[input.at()] && takes(input));
    if (std::none_of(wanted.begin(), wanted.end(), [](bool wants) { return wants; })) return;
    const size_t values_before = graph_.value_count();
    GradContext context(builder_, graph_, id, std::move(output_grads), std::move(wanted),
                        std::vector<ValueId>(node.inputs.size()));
    rule(context);
    std::set<ValueId> named;
    for (size_t i = 0; i < context.results().size(); ++i) {
      const ValueId grad = context.results()[i];
      if (!grad) continue;
      const ValueId input = node.inputs[i];
      const TensorType &found = graph_.type(grad), &expected = graph_.type(input);
      LT_CHECK(context.wants(i), name(node.op), ": the rule made a gradient of operand ", i, ", which needs none");
      LT_CHECK(found.dtype == expected.dtype && shapes_agree(found.shape, expected.shape, graph_.ranges()),
               name(node.op), ": operand ", i, " is ", to_string(expected), ", its gradient ", to_string(found));
      // One text for one size, however the rule came by it.
      if (found != expected) graph_.set_type(grad, expected);
      if (grad.at() >= values_before && named.insert(grad).second) graph_.rename(grad, grad_name(input));
      add(input, grad, origin);
    }
  }

  void add(ValueId value, ValueId grad, const Origin& origin) {
    Accumulated& into = gradients_[value.at()];
    into.origin = origin;
    if (!into.sum) {
      into.sum = grad;
      return;
    }
    builder_.set_origin(origin);
    into.sum = builder_.named(grad_name(value)).add(into.sum, grad);
  }

  // All that flows into a value; none where nothing does.
  ValueId total(ValueId value) {
    Accumulated& from = gradients_[value.at()];
    if (from.pieces.empty()) return from.sum;
    builder_.set_origin(from.origin);
    std::vector<GradientPiece> pieces = std::exchange(from.pieces, {});
    add(value, join_pieces(builder_, graph_.type(value).shape, std::move(pieces)), from.origin);
    return from.sum;
  }

  // Updates, then the gradient of each input that requires one and is reached. PyTorch's gradient of an input behind a
  // function without slope is zeros; of one without a path to the outputs, none.
  void set_outputs(const std::vector<bool>& reached) {
    std::vector<GraphOutput> outputs;
    for (const GraphOutput& output : graph_.outputs())
      if (output.kind == OutputKind::kUpdate) outputs.push_back(output);
    std::set<ValueId> taken;
    for (const GraphInput& input : graph_.inputs()) {
      if (!reached[input.value.at()]) continue;
      ValueId grad = total(input.value);
      inspect_gradient(input.value, grad);
      // Where nothing flowed in, the input's first user stopped it.
      const Node& first_user = graph_.node(graph_.value(input.value).users.at(0));
      builder_.set_origin(grad ? gradients_[input.value.at()].origin : gradient_origin(first_user.origin));
      const TensorType type = graph_.type(input.value);
      if (!grad) grad = builder_.named(grad_name(input.value)).full(type.shape, 0.0, type.dtype);
      // The caller owns each gradient: no two of them, and none and the caller's own incoming one, may share bytes.
      const ValueId root = base_of_views(graph_, grad);
      if (is_callers(root) || !taken.insert(root).second)
        grad = builder_.named(grad_name(input.value)).op(Op::kCopy, {grad});
      outputs.push_back({grad, OutputKind::kGradient, input.value});
    }
    graph_.set_outputs(std::move(outputs));
  }

  bool is_callers(ValueId root) const {
    const NodeId producer = graph_.value(root).producer;
    return !producer.valid() || graph_.node(producer).op == Op::kYieldOp;
  }

  std::string grad_name(ValueId value) const { return graph_.value(value).name + "_grad"; }
  static Origin gradient_origin(const Origin& of) { return {of.module, of.line, OriginKind::kGradient, {}}; }
  Origin producer_origin(ValueId value) const {
    const NodeId producer = graph_.value(value).producer;
    return producer ? gradient_origin(graph_.node(producer).origin) : Origin{{}, {}, OriginKind::kGradient, {}};
  }

  Graph graph_;
  Builder builder_;
  std::vector<bool> needs_;                       // by forward value
  std::vector<Accumulated> gradients_;            // by forward value
  std::vector<std::vector<NodeId>> inspections_;  // by forward value: its Inspect nodes
  std::vector<bool> is_shadow_;                   // by forward node: there for inspection only
  std::vector<std::vector<bool>> reached_from_;   // by output of YieldOp, by forward value
};

}  // namespace

Graph build_gradient(const Graph& forward, std::vector<bool> output_needs_grad) {
  return build_gradient_graph(forward, std::move(output_needs_grad)).graph;
}

GradientGraph build_gradient_graph(const Graph& forward, std::vector<bool> output_needs_grad) {
  return GradientBuilder(forward).build(output_needs_grad);
}

}  // namespace lowtide
