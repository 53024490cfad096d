#pragma once

#include "ir/graph.h"

namespace lowtide {

// Recognises RMS normalisation over the last dim.
//   %m = ReduceMean(axes=[-1], keepdims=true) (Pow %x, 2.0)
//   %r = Rsqrt (Add %m, epsilon)                                →   %y = SimplifiedLayerNormalization %x, %w
//   %y = Mul %w, (Mul %x, %r)
// The square may be Mul %x, %x; the root Pow %v, -0.5 or a division by Sqrt. The weight may be any value of one dim
// (Gemma's 1 + w). Where casts part the norm from its weight, or the weight has another shape, only the norm is fused.
// Requires: nothing; best after fold. Leaves: dead nodes (run dce).
bool fuse_rms_norm(Graph& graph);

}  // namespace lowtide
