#pragma once

#include "ir/graph.h"

namespace lowtide {

// Recognises rotary position embeddings.
//   %r = Concat(axis=-1) (Neg %x[E/2:]), %x[:E/2]
//   %y = Add (Mul %x, %cos), (Mul %r, %sin)         →   %y = RotaryEmbedding %x, %cos, %sin
// x may itself be a slice on the last dim (partial rotation). Under autocast, where x is bf16 and the tables f32:
//   %w = Cast(f32) %x, %u = Cast(f32) %r
//   %y = Add (Mul %w, %cos), (Mul %u, %sin)         →   %y = RotaryEmbedding %w, %cos, %sin
// Requires: fold (merged slices). Leaves: dead nodes (run dce).
bool fuse_rotary(Graph& graph);

}  // namespace lowtide
