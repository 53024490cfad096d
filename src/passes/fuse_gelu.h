#pragma once

#include "ir/graph.h"

namespace lowtide {

// Recognises activations that models write out.
//   0.5*x*(1 + tanh(sqrt(2/pi)*(x + 0.044715*x**3)))   →   FastGelu %x
//   0.5*x*(1 + erf(x/sqrt(2)))                         →   Gelu %x
//   x*sigmoid(x), x*sigmoid(1.702*x)                   →   Swish %x, QuickGelu(alpha=1.702) %x
// in any order of factors and terms: the arithmetic around tanh, erf and sigmoid is read as a polynomial.
// Requires: nothing; best after fold. Leaves: dead nodes (run dce).
bool fuse_gelu(Graph& graph);

}  // namespace lowtide
