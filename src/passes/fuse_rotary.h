#pragma once

#include "ir/graph.h"

namespace lowtide {

// Recognises rotary position embeddings.
//   %r = Concat(axis=-1) (Neg %x[E/2:]), %x[:E/2]
//   %y = Add (Mul %x, %cos), (Mul %r, %sin)         →   %y = RotaryEmbedding %x, %cos, %sin
// x may itself be a slice on the last dim (partial rotation). Under autocast, where x is bf16 and the tables f32:
//   %w = Cast(f32) %x, %u = Cast(f32) %r
//   %y = Add (Mul %w, %cos), (Mul %u, %sin)         →   %y = RotaryEmbedding %w, %cos, %sin
// Neighbours as pairs, as GPT-J and Cohere write it:
//   %r = Reshape (Concat(axis=-1) (Neg x[1::2])[.., None], x[::2][.., None])
//   %y = Add (Mul %x, %cos), (Mul %r, %sin)         →   %y = RotaryEmbedding(interleaved) %x, %cos, %sin
// A product of complex numbers, with cos and sin once for each pair: %a = %p[.., 0], %b = %p[.., 1]
//   %re = Sub (Mul %a, %cos), (Mul %b, %sin), %im = Add (Mul %a, %sin), (Mul %b, %cos)
//   %y = Concat(axis=-1) %re[.., None], %im[.., None]
//                                                   →   RotaryEmbedding(interleaved) of %p with its pairs in a row
// Requires: fold (merged slices). Leaves: dead nodes (run dce).
bool fuse_rotary(Graph& graph);

}  // namespace lowtide
