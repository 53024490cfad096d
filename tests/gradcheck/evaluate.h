// Runs a graph node by node on the reference kernels: no plan, every value in memory of its own. The simplest thing
// that a planned run can be compared with.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "ir/graph.h"

namespace lowtide {

// Row-major.
struct Tensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> sizes;
  std::vector<std::byte> bytes;
};

Tensor make_tensor(DType dtype, std::vector<int64_t> sizes, const std::vector<double>& values);
std::vector<double> values_of(const Tensor& tensor);  // any dtype, as numbers

using Tensors = std::map<ValueId, Tensor>;

// Adds every value of the graph to `values`, which holds the graph's inputs and, for a training graph, the outputs of
// its YieldOp. All dims must be numbers. Calls into PyTorch cannot be evaluated.
void evaluate(const Graph& graph, Tensors& values, uint64_t random_key = 1);

}  // namespace lowtide
