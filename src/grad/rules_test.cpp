// Every gradient rule, on the example graphs of its op. The numbers are checked where the kernels are.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>

#include "grad/gradient.h"
#include "ir/print.h"
#include "ir/verify.h"
#include "ops/builder.h"
#include "ops/example_graphs.h"
#include "ops/rule.h"

namespace lowtide {
namespace {

bool is_backward(const Graph& graph, NodeId id) { return graph.node(id).origin.kind == OriginKind::kGradient; }

// Builds and checks a training graph in which only the marked inputs require a gradient.
Graph train(const Example& example, const std::vector<bool>& requires_grad) {
  Graph forward = build_example(example, DType::kF64);
  for (size_t i = 0; i < forward.inputs().size(); ++i)
    forward.inputs()[i].requires_grad = forward.inputs()[i].requires_grad && requires_grad[i];
  for (NodeId id : forward.order()) forward.edit(id).origin = {"block.0", "model.py:7", OriginKind::kForward, {}};
  Graph training = build_gradient(forward);
  verify(training);
  verify_types(training);
  return training;
}

std::set<ValueId> gradient_targets(const Graph& graph) {
  std::set<ValueId> targets;
  for (const GraphOutput& output : graph.outputs())
    if (output.kind == OutputKind::kGradient) targets.insert(output.target);
  return targets;
}

void check_backward(const Graph& training) {
  for (NodeId id : training.order()) {
    if (!is_backward(training, id)) continue;
    const Node& node = training.node(id);
    EXPECT_EQ(node.origin.module, "block.0") << print_node(training, id);
    EXPECT_EQ(node.origin.line, "model.py:7") << print_node(training, id);
    for (ValueId output : node.outputs)
      EXPECT_TRUE(!output || !training.value(output).users.empty() || training.is_output(output))
          << "nobody reads %" << training.value(output).name << " of\n"
          << print(training);
  }
}

TEST(GradientRules, EveryDifferentiableOpHasAnExample) {
  std::set<Op> seen;
  for (const Example& example : example_graphs())
    for (const ExampleInput& input : example.inputs)
      if (input.requires_grad) seen.insert(example.op);
  for (const OpInfo& op : all_ops())
    EXPECT_TRUE(!is_differentiable(op.op) || op.category == OpCategory::kCall || seen.contains(op.op)) << op.name;
}

TEST(GradientRules, GiveEachInputItsGradientAndNothingElse) {
  for (const Example& example : example_graphs()) {
    SCOPED_TRACE(example.name);
    const Graph forward = build_example(example, DType::kF64);
    const size_t count = forward.inputs().size();
    if (!is_differentiable(example.op) || !is_float(forward.type(forward.outputs()[0].value).dtype)) continue;
    // All at once, then one by one.
    std::vector<std::vector<bool>> choices{std::vector<bool>(count, true)};
    for (size_t i = 0; i < count; ++i) {
      choices.emplace_back(count);
      choices.back()[i] = true;
    }
    for (const std::vector<bool>& choice : choices) {
      const Graph training = train(example, choice);
      std::set<ValueId> expected;
      for (size_t i = 0; i < count; ++i)
        if (choice[i] && forward.inputs()[i].requires_grad) expected.insert(training.inputs()[i].value);
      EXPECT_EQ(gradient_targets(training), expected) << print(training);
      check_backward(training);
    }
  }
}

// The graph with a symbol for the first dim of its inputs, where the op allows that.
std::optional<Graph> with_symbolic_batch(const Example& example) {
  const Graph concrete = build_example(example, DType::kF64);
  if (concrete.inputs().empty() || concrete.type(concrete.inputs()[0].value).shape.empty()) return std::nullopt;
  const Shape first = concrete.type(concrete.inputs()[0].value).shape;
  Graph graph("symbolic");
  Builder builder(graph);
  std::map<ValueId, ValueId> copies;
  for (const GraphInput& input : concrete.inputs()) {
    TensorType type = concrete.type(input.value);
    const bool has_batch = type.shape.size() >= first.size() || (!is_float(type.dtype) && !type.shape.empty());
    if (has_batch && type.shape[0] == first[0]) type.shape[0] = Dim::symbol("n");
    copies[input.value] = graph.add_input("x", type, input.kind, input.requires_grad);
  }
  const auto copy_of = [&](ValueId value) { return value ? copies.at(value) : ValueId{}; };
  try {
    for (NodeId id : concrete.order()) {
      const Node& node = concrete.node(id);
      std::vector<ValueId> operands;
      for (ValueId input : node.inputs) operands.push_back(copy_of(input));
      const NodeId copy = builder.node(node.op, operands, node.attrs);
      for (size_t i = 0; i < node.outputs.size(); ++i)
        if (node.outputs[i]) copies[node.outputs[i]] = graph.node(copy).outputs[i];
    }
  } catch (const Error&) {
    return std::nullopt;  // the symbol meets a number
  }
  graph.add_output(copies.at(concrete.outputs()[0].value));
  return graph;
}

TEST(GradientRules, WorkWithSymbolicSizes) {
  std::set<Op> checked;
  for (const Example& example : example_graphs()) {
    SCOPED_TRACE(example.name);
    const std::optional<Graph> forward = with_symbolic_batch(example);
    if (!is_differentiable(example.op) || !forward) continue;
    const Graph training = build_gradient(*forward);
    EXPECT_NO_THROW(verify(training)) << print(training);
    EXPECT_NO_THROW(verify_types(training)) << print(training);
    checked.insert(example.op);
  }
  for (const OpInfo& op : all_ops()) {
    // A shape attribute holds numbers in the examples of these.
    const bool has_shape =
        op.op == Op::kReshape || op.op == Op::kExpand || op.op == Op::kSqueeze || op.op == Op::kCol2Im;
    EXPECT_TRUE(!is_differentiable(op.op) || op.category == OpCategory::kCall || has_shape || checked.contains(op.op))
        << op.name;
  }
}

TEST(GradientRules, ReachEveryBackwardOp) {
  std::set<Op> seen;
  for (const Example& example : example_graphs()) {
    if (!is_differentiable(example.op)) continue;
    const Graph training = train(example, std::vector<bool>(example.inputs.size(), true));
    for (NodeId id : training.order()) seen.insert(training.node(id).op);
  }
  // Passes make these of what rules make.
  seen.insert({Op::kLinearCrossEntropyLossGrad, Op::kPanelLinearCrossEntropyLossGrad});
  for (const OpInfo& op : all_ops())
    EXPECT_TRUE(!op.name.ends_with("Grad") || op.op == Op::kCallGrad || seen.contains(op.op)) << op.name;
}

}  // namespace
}  // namespace lowtide
