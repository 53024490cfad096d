#include "grad/gradient.h"

#include <optional>
#include <set>

#include "base/check.h"
#include "grad/inspected_gradients.h"
#include "grad/needs.h"
#include "grad/sweep.h"
#include "ir/views.h"

namespace lowtide {

namespace {

class GradientBuilder {
 public:
  explicit GradientBuilder(const Graph& forward)
      : graph_(forward.clone()), builder_(graph_), needs_(needs_gradient(graph_)), sweep_(builder_, needs_) {}

  GradientGraph build(const std::vector<bool>& output_needs_grad) {
    const std::vector<NodeId> forward_order = graph_.order();
    std::vector<size_t> sources;
    const std::vector<ValueId> outputs = module_outputs(output_needs_grad, sources);
    std::vector<ValueId> source_values;
    for (size_t source : sources) source_values.push_back(outputs[source]);
    const std::vector<bool> reached = reached_by_gradient(graph_, needs_, source_values);
    InspectedGradients inspected(builder_, sweep_, needs_, source_values);
    add_yield(outputs, sources);
    for (auto at = forward_order.rbegin(); at != forward_order.rend(); ++at) {
      inspected.visit(*at);
      sweep_.visit(*at);
    }
    set_outputs(reached, inspected);
    return {std::move(graph_), sweep_.totals()};
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
      names.push_back(grad_name(graph_, outputs[source]));
    }
    const NodeId yield = graph_.add_node(Op::kYieldOp, outputs, types, {{"grads", grads}}, {}, {}, names);
    for (size_t i = 0; i < sources.size(); ++i)
      sweep_.add(outputs[sources[i]], graph_.node(yield).outputs[i], producer_origin(outputs[sources[i]]));
  }

  // Updates, then the gradient of each input that requires one and is reached. PyTorch's gradient of an input behind a
  // function without slope is zeros; of one without a path to the outputs, none.
  void set_outputs(const std::vector<bool>& reached, InspectedGradients& inspected) {
    std::vector<GraphOutput> outputs;
    for (const GraphOutput& output : graph_.outputs())
      if (output.kind == OutputKind::kUpdate) outputs.push_back(output);
    std::set<ValueId> taken;
    for (const GraphInput& input : graph_.inputs()) {
      const ValueId holder = holder_of_gradient(graph_, input);
      if (!reached[holder.at()]) continue;
      ValueId grad = sweep_.total(holder);
      inspected.inspect(holder, grad);
      // Where nothing flowed in, the input's first user stopped it.
      const Node& first_user = graph_.node(graph_.value(holder).users.at(0));
      builder_.set_origin(grad ? sweep_.origin(holder) : gradient_origin(first_user.origin));
      const TensorType type = graph_.type(input.value);
      const std::string name = grad_name(graph_, input.value);
      if (!grad) grad = builder_.named(name).full(type.shape, 0.0, type.dtype);
      // The caller owns each gradient: no two of them, and none and the caller's own incoming one, may share bytes.
      const ValueId bytes = base_of_views(graph_, grad);
      if (is_callers(bytes) || !taken.insert(bytes).second) grad = builder_.named(name).op(Op::kCopy, {grad});
      outputs.push_back({grad, OutputKind::kGradient, input.value});
    }
    graph_.set_outputs(std::move(outputs));
  }

  bool is_callers(ValueId value) const {
    const NodeId producer = graph_.value(value).producer;
    return !producer.valid() || is_yield(graph_.node(producer).op);
  }

  Origin producer_origin(ValueId value) const {
    const NodeId producer = graph_.value(value).producer;
    return producer ? gradient_origin(graph_.node(producer).origin) : Origin{{}, {}, OriginKind::kGradient, {}};
  }

  Graph graph_;
  Builder builder_;
  std::vector<bool> needs_;  // by forward value
  Sweep sweep_;
};

}  // namespace

Graph build_gradient(const Graph& forward, std::vector<bool> output_needs_grad) {
  return build_gradient_graph(forward, std::move(output_needs_grad)).graph;
}

GradientGraph build_gradient_graph(const Graph& forward, std::vector<bool> output_needs_grad) {
  return GradientBuilder(forward).build(output_needs_grad);
}

}  // namespace lowtide
