#pragma once

#include "ir/graph.h"

namespace lowtide {

// Queries, keys and values that are parts of one tensor have their gradients written where they belong in its own:
//   %dq, %dk, %dv = AttentionGrad …                      →   %packed = AttentionGrad(packed=2) …
//   %dqkv = Concat (views of %dq), (of %dk), (of %dv)    →   %dqkv = a view of %packed
// Nothing is copied, and the gradients may lie where the queries, keys and values did.
// Requires: a training graph where only the concatenation reads the three. Leaves: dead nodes (run dce).
bool pack_attention_grad(Graph& graph);

}  // namespace lowtide
