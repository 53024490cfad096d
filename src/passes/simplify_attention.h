#pragma once

#include "ir/graph.h"

namespace lowtide {

// Says in Attention's own words what its operands say in tensors.
//   a mask that index arithmetic proves to be j <= i           →   is_causal=true, no mask
//   a mask that is true everywhere                             →   no mask
//   a mask or bias broadcast by Expand                         →   what it was before
//   a mask that is the sum of two smaller ones                 →   a mask and a bias
//   keys and values repeated for groups of heads (Unsqueeze, Expand, Reshape)   →   the heads that there are
// The note of the attention's origin lists the ops that it absorbs so.
// Requires: fold. Leaves: dead nodes (run dce).
bool simplify_attention(Graph& graph);

}  // namespace lowtide
