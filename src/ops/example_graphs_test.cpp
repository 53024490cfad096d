#include "ops/example_graphs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "ir/verify.h"
#include "ops/rule.h"

namespace lowtide {
namespace {

TEST(ExampleGraphs, EveryOpWithInferenceHasOne) {
  std::set<Op> seen;
  for (const Example& example : example_graphs()) seen.insert(example.op);
  for (const OpInfo& op : all_ops()) {
    // Backward ops are reached through the gradients of the examples: src/grad/rules_test.cpp.
    const bool is_backward = op.name.ends_with("Grad");
    if (!infer_function(op.op) || is_backward || is_collective(op.op)) continue;
    EXPECT_TRUE(seen.contains(op.op)) << "no example graph of " << op.name;
  }
}

TEST(ExampleGraphs, AreVerified) {
  for (const Example& example : example_graphs())
    for (DType real : {DType::kF32, DType::kF64}) {
      SCOPED_TRACE(example.name);
      const Graph graph = build_example(example, real);
      EXPECT_NO_THROW(verify(graph));
      EXPECT_NO_THROW(verify_types(graph));
    }
}

TEST(ExampleGraphs, NamesAreUnique) {
  std::set<std::string> names;
  for (const Example& example : example_graphs()) EXPECT_TRUE(names.insert(example.name).second) << example.name;
}

TEST(ExampleGraphs, ValuesKeepTheirPromises) {
  for (const Example& example : example_graphs())
    for (const ExampleInput& input : example.inputs) {
      SCOPED_TRACE(example.name);
      if (input.kind != ExampleInput::Kind::kTensor) continue;
      const std::vector<double> values = example_values(input, 7);
      EXPECT_EQ(values, example_values(input, 7));
      std::set<double> seen;
      for (double value : values) {
        const bool is_bool = input.dtype == DType::kBool;
        EXPECT_GE(value, input.low - (input.kinks.empty() ? 0 : 0.06));
        EXPECT_LE(value, is_bool ? 1 : input.high + (input.kinks.empty() ? 0 : 0.06));
        for (double kink : input.kinks) EXPECT_GE(std::abs(value - kink), 0.049);
        EXPECT_TRUE(seen.insert(value).second || !input.distinct);
      }
    }
}

}  // namespace
}  // namespace lowtide
