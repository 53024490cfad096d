// Which incoming gradients, and which inputs, the gradients of a training graph are made of.
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace lowtide {

// Per graph input: the outputs of YieldOp (indices) that its gradient depends on; empty for an input without one. Where
// a call gives none of them, the input has no gradient at all, which is not the same as zeros: PyTorch leaves its grad
// as it is.
std::vector<std::vector<int>> gradient_sources(const Graph& training);

// Per graph input: the module's outputs (indices) from which PyTorch's backward comes to it, if only with zeros, as
// through a value that was overwritten. `forward`: as it was lowered; a fused op leads from each output to all inputs.
std::vector<std::vector<int>> outputs_led_to(const Graph& forward);

// Per graph input: outputs of YieldOp, of `outputs`, which outputs_led_to gave for the same module.
std::vector<std::vector<int>> gradient_sources(const Graph& training, const std::vector<std::vector<int>>& outputs);

// The graph inputs, ascending, that some gradient depends on.
std::vector<int> gradient_reads(const Graph& training);

// Per graph input: whether its gradient exists in a step, where `given` tells which outputs of YieldOp have one (with
// none, any of them may have been reached), and
// the backward of PythonOps gave none for these operands: (the PythonOp's `call`, operand).
std::vector<bool> existing_gradients(const Graph& training, const std::vector<bool>& given,
                                     const std::set<std::pair<int64_t, int64_t>>& missing);

}  // namespace lowtide
