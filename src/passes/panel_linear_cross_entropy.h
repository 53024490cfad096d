#pragma once

#include "ir/graph.h"

namespace lowtide {

// Logits of bf16 or f16 that nobody reads but their loss and its gradient lie, from forward on, where the gradient of
// the layer's weight will be:
//   %z = Gemm(transB=true) %x, %w, %b
//   %y, %lse = SoftmaxCrossEntropyLoss %z, %labels           →   %y, %lse, %head, %rest =
//   ..                                                               PanelLinearCrossEntropyLoss %x, %w, %labels, %b
//   %dx, %dw, %db = LinearCrossEntropyLossGrad               →   %dx, %dw, %db = PanelLinearCrossEntropyLossGrad
//                     %dy, %z, %labels, %lse, %w, %x                               %dy, %head, %labels, %lse, %w, %x,
//                     %rest
// If all that reads %dw is a cast to f32, as under autocast, %dw is in f32 itself, rounded as it was.
// Left alone: logits that another reads, a frozen weight, f32 (fuse_linear_cross_entropy has those).
// Requires: a training graph after absorb_casts, which says what dtype the gradient has. Leaves: dead nodes (run dce).
bool panel_linear_cross_entropy(Graph& graph);

}  // namespace lowtide
