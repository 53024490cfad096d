#pragma once

#include "ir/graph.h"

namespace lowtide {

// Casts that a kernel does as it reads or writes (ops.def: LT_CONVERTS) are no steps of their own.
//   %c = Cast(to=bf16) %w                     →   %y = Gemm(computes=bf16) %x, %w
//   %y = Gemm %x, %c
//   %c = Cast(to=f32) %h                      →   %y = Add(computes=f32) %h, %r
//   %y = Add %c, %r
//   %n = LayerNormalization %x                →   %y = LayerNormalization(computes=f32, gives=bf16) %x
//   %y = Cast(to=bf16) %n
// A cast goes where every reader can do it, through views; else it stays. A narrowing one only where that keeps nothing
// wide alive that was not: of an input of the graph, or for one reader in the same half of the step.
// Bits stay: a value is rounded where the cast rounded it.
// Requires: a graph whose gradient is built. Leaves: dead nodes (run dce).
bool absorb_casts(Graph& graph);

}  // namespace lowtide
