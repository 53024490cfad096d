// Small graphs of one node each, for tests: every op that has inference, several cases of it (broadcasting, axes,
// attributes). Inference, gradient rules and kernels are tested on the same list.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace lowtide {

// An operand and the values that suit it: where the op is smooth, or where indices stay inside.
struct ExampleInput {
  enum class Kind { kTensor, kNumber, kAbsent };
  Kind kind = Kind::kTensor;
  DType dtype = DType::kF32;  // a floating one stands for the dtype that the test chooses
  std::vector<int64_t> shape;
  bool requires_grad = false;
  // Values lie in [low, high] (integers: both included; bool: true with probability `high`). kNumber: a Constant of the
  // value `low`.
  double low = -1, high = 1;
  bool distinct = false;      // no two values are equal or nearly so
  std::vector<double> kinks;  // no value is nearer than 0.05 to one of these
  bool is_statistic = false;  // kept in f32 where the others are bf16 or f16
};

struct Example {
  std::string name;  // "Add broadcast"
  Op op;
  std::vector<ExampleInput> inputs;
  Attrs attrs;
};

std::vector<Example> example_graphs();

// Inputs x0, x1 .. (those that are tensors), the node, and its first output as the module's; new running statistics are
// updates.
Graph build_example(const Example& example, DType real);

// Values for an input, row-major; bools and integers as numbers. The same seed gives the same values.
std::vector<double> example_values(const ExampleInput& input, uint64_t seed);

}  // namespace lowtide
