// Every gradient rule against finite differences of the forward graph, in f64 on the reference kernels.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "evaluate.h"
#include "grad/gradient.h"
#include "ir/print.h"
#include "ops/example_graphs.h"
#include "ops/rule.h"

namespace lowtide {
namespace {

constexpr DType kReal = DType::kF64;

Tensors example_tensors(const Graph& graph, const Example& example) {
  Tensors values;
  size_t next = 0;
  for (const ExampleInput& input : example.inputs) {
    if (input.kind != ExampleInput::Kind::kTensor) continue;
    const ValueId id = graph.inputs()[next].value;
    values[id] = make_tensor(graph.type(id).dtype, input.shape, example_values(input, 100 + next));
    ++next;
  }
  return values;
}

// sum(weights * first output) at these inputs
double weighted_sum(const Graph& forward, Tensors values, const std::vector<double>& weights) {
  evaluate(forward, values);
  const std::vector<double> y = values_of(values.at(forward.outputs()[0].value));
  double sum = 0;
  for (size_t i = 0; i < y.size(); ++i) sum += weights[i] * y[i];
  return sum;
}

void check_gradients(const Example& example) {
  const Graph forward = build_example(example, kReal), training = build_gradient(forward);
  const Tensors inputs = example_tensors(forward, example);
  Tensors values = inputs;
  const NodeId yield = training.yield();
  ASSERT_TRUE(yield.valid());
  const ValueId y = training.node(yield).inputs[0];
  ASSERT_EQ(training.node(yield).outputs.size(), 1u);
  const ValueId dy = training.node(yield).outputs[0];

  std::vector<int64_t> sizes;
  for (const Dim& dim : training.type(y).shape) sizes.push_back(dim.constant());
  int64_t count = 1;
  for (int64_t size : sizes) count *= size;
  std::mt19937_64 generator(3);
  std::vector<double> weights(static_cast<size_t>(count));
  for (double& weight : weights) weight = static_cast<double>(generator() >> 11) * 0x1p-52 - 1;
  values[dy] = make_tensor(training.type(dy).dtype, sizes, weights);
  evaluate(training, values);

  size_t gradients = 0;
  for (const GraphOutput& output : training.outputs()) {
    if (output.kind != OutputKind::kGradient) continue;
    ++gradients;
    const std::vector<double> found = values_of(values.at(output.value)), x = values_of(inputs.at(output.target));
    ASSERT_EQ(found.size(), x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      constexpr double kStep = 1e-5;
      const auto sum_at = [&](double moved) {
        std::vector<double> elements = x;
        elements[i] = moved;
        Tensors at = inputs;
        at[output.target] = make_tensor(kReal, inputs.at(output.target).sizes, elements);
        return weighted_sum(forward, std::move(at), weights);
      };
      const double expected = (sum_at(x[i] + kStep) - sum_at(x[i] - kStep)) / (2 * kStep);
      EXPECT_NEAR(found[i], expected, 1e-7 + 1e-6 * std::abs(expected))
          << "element " << i << " of the gradient of %" << training.value(output.target).name << " at " << x[i]
          << " in\n"
          << print(training);
      if (::testing::Test::HasFailure()) return;
    }
  }
  size_t expected_gradients = 0;
  for (const ExampleInput& input : example.inputs) expected_gradients += input.requires_grad ? 1 : 0;
  EXPECT_EQ(gradients, expected_gradients);
}

class GradientCheck : public ::testing::TestWithParam<Example> {};

TEST_P(GradientCheck, AgreesWithFiniteDifferences) { check_gradients(GetParam()); }

std::vector<Example> differentiable_examples() {
  std::vector<Example> found;
  for (const Example& example : example_graphs()) {
    if (!is_differentiable(example.op)) continue;
    const Graph graph = build_example(example, kReal);
    const bool has_gradient = std::any_of(example.inputs.begin(), example.inputs.end(),
                                          [](const ExampleInput& input) { return input.requires_grad; });
    if (has_gradient && is_float(graph.type(graph.outputs()[0].value).dtype)) found.push_back(example);
  }
  return found;
}

std::string test_name(const ::testing::TestParamInfo<Example>& info) {
  std::string name;
  for (char c : info.param.name) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return concat(name, "_", info.index);
}

INSTANTIATE_TEST_SUITE_P(Rules, GradientCheck, ::testing::ValuesIn(differentiable_examples()), test_name);

}  // namespace

void PrintTo(const Example& example, std::ostream* out) { *out << example.name; }

}  // namespace lowtide
