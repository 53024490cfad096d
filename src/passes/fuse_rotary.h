#pragma once

#include "ir/graph.h"

namespace lowtide {

// Recognises rotary position embeddings.
//   %r = Concat(axis=-1) (Neg %x[E/2:]), %x[:E/2]
//   %y = Add (Mul %x, %cos), (Mul %r, %sin)         →   %y = RotaryEmbedding %x, %cos, %sin
// x may itself be a slice on the last dim (partial rotation).
// Requires: fold (merged slices). Leaves: dead nodes (run dce).
bool fuse_rotary(Graph& graph);

}  // namespace lowtide
