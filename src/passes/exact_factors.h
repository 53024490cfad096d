#pragma once

#include "ir/graph.h"

namespace lowtide {

// A factor or divisor that 16 bits cannot hold is taken as f32 holds it, as PyTorch takes a Python number that it
// multiplies or divides a tensor of 16 bits by: the result is rounded once.
//   %c: bf16[] = Constant(value=0.9)          →   %c: f32[] = Constant(value=0.9)
//   %y = Mul %x, %c                               %y = Mul(computes=f32, gives=bf16) %x, %c
// Requires: a graph whose gradient is built; no pattern is looked for behind it. Leaves: dead nodes (run dce).
bool exact_factors(Graph& graph);

}  // namespace lowtide
