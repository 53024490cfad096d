// Rebuilds values in backward that cost next to nothing there, since all they are made of is kept anyway: the result of
// a normalisation (its gradient keeps x), SiLU (its gradient keeps x). Views of the value are rebuilt with it.
//   %y = LayerNormalization %x        %y = LayerNormalization %x
//   yield                             yield
//   … Gemm %dy, %y                →   %y1 = LayerNormalization %x      (right before its first reader)
//   … LayerNormalizationGrad %x       … Gemm %dy, %y1
// Requires: a training graph. Must run after cse, which would undo it. Changes no bit of any result: an op is a
// function. Activations that users name in a recompute configuration (Gelu, dropout, …) are left to it.
#pragma once

#include "ir/graph.h"

namespace lowtide {

bool rebuild(Graph& graph);

}  // namespace lowtide
