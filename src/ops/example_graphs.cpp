#include "ops/example_graphs.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/check.h"
#include "ops/example_inputs.h"
#include "ops/inference.h"

namespace lowtide {

std::vector<Example> example_graphs() {
  examples::List list;
  examples::add_pointwise(list);
  examples::add_views_and_reductions(list);
  examples::add_rows_and_products(list);
  examples::add_indices(list);
  examples::add_packing(list);
  examples::add_windows(list);
  return list.take();
}

Graph build_example(const Example& example, DType real) {
  Graph graph("example");
  Builder builder(graph);
  std::vector<ValueId> operands;
  Attrs attrs = example.attrs;
  if (attrs.has("dtype") && is_float(attrs.t("dtype"))) attrs.set("dtype", real);
  for (const ExampleInput& input : example.inputs) {
    const DType chosen = input.is_statistic ? statistics_dtype(real) : real;
    const DType dtype = is_float(input.dtype) ? chosen : input.dtype;
    switch (input.kind) {
      case ExampleInput::Kind::kAbsent: operands.push_back({}); break;
      case ExampleInput::Kind::kNumber: operands.push_back(builder.scalar(input.low, dtype)); break;
      case ExampleInput::Kind::kTensor:
        operands.push_back(graph.add_input(concat("x", graph.inputs().size()), {dtype, dims(input.shape)},
                                           input.requires_grad ? InputKind::kParam : InputKind::kInput,
                                           input.requires_grad));
    }
  }
  const NodeId node = builder.node(example.op, operands, std::move(attrs));
  const std::vector<ValueId>& outputs = graph.node(node).outputs;
  graph.add_output(outputs[0]);
  if (example.op == Op::kBatchNormalization)
    for (size_t i : {3, 4})
      if (outputs[i]) graph.add_output(outputs[i], OutputKind::kUpdate, operands[i]);
  return graph;
}

std::vector<double> example_values(const ExampleInput& input, uint64_t seed) {
  int64_t count = 1;
  for (int64_t size : input.shape) count *= size;
  std::mt19937_64 generator(seed);
  // The generator's bits are the standard's, its distributions are not: draw by hand.
  const auto uniform = [&] { return static_cast<double>(generator() >> 11) * 0x1p-53; };
  const bool integral = is_integer(input.dtype);
  const double width = input.high - input.low + (integral ? 1 : 0);
  std::vector<double> values;
  // Evenly spread slots, each used once, keep distinct values apart.
  const int64_t slots = integral ? static_cast<int64_t>(width) : count;
  LT_CHECK(!input.distinct || slots >= count, "not enough distinct integers for an example");
  std::vector<int64_t> order(static_cast<size_t>(slots));
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = static_cast<int64_t>(i);
    std::swap(order[i], order[static_cast<size_t>(uniform() * static_cast<double>(i + 1))]);
  }
  for (int64_t i = 0; i < count; ++i) {
    if (input.dtype == DType::kBool) {
      values.push_back(uniform() < input.high ? 1 : 0);
    } else if (integral) {
      values.push_back(input.low + (input.distinct ? static_cast<double>(order[static_cast<size_t>(i)])
                                                   : std::floor(uniform() * width)));
    } else {
      const double at = input.distinct ? (static_cast<double>(order[static_cast<size_t>(i)]) + 0.25 + uniform() / 2) /
                                             static_cast<double>(slots)
                                       : uniform();
      double value = input.low + at * width;
      for (double kink : input.kinks)
        if (std::abs(value - kink) < 0.05) value = value < kink ? kink - 0.05 : kink + 0.05;
      values.push_back(value);
    }
  }
  return values;
}

}  // namespace lowtide
