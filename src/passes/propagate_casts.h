#pragma once

#include "passes/pass.h"

namespace lowtide {

// Moves casts between float dtypes so that more of the graph is in the narrow one, and pairs of casts cancel. The
// numbers of the forward stay the same to the bit.
//
//   %w = Cast(f32) %x: bf16                  %r = Reshape %x
//   %r = Reshape %w                    →     %y = Cast(f32) %r          a widening cast goes down an op that only moves
//
//   %t = Transpose %x: f32                   %c = Cast(bf16) %x
//   %y = Cast(bf16) %t                 →     %y = Transpose %c          a narrowing cast goes up such an op, or a Relu
//
//   %w = Cast(f32) %x: bf16                  %y = Tanh %x
//   %t = Tanh %w                       →
//   %y = Cast(bf16) %t                       a pair around an op that computes: kernels compute in f32 and round once
//
//   %w = Cast(f32) %x: bf16                  %y = SoftmaxCrossEntropyLoss %x, %t
//   %y = SoftmaxCrossEntropyLoss %w, %t  →   a loss without class weights, whose result is f32 either way
//
// An op is touched if `options.cast_level` or `options.cast_allow` (names of ops) has it: level 0 none; 1 Expand,
// Transpose, Relu, Reshape, Slice, Tanh, Squeeze, Unsqueeze, Gelu, Softmax, SoftmaxCrossEntropyLoss; 2 also Add, Sub,
// Mul, Div, Dropout, Gather, Where and Concat. Error(kInvalidArgument) for another level, or for a name of no op or of
// one with several outputs. Requires: no gradient yet, for casts around saved activations decide their dtype. Leaves:
// dead casts, pairs (run fold and dce).
bool propagate_casts(Graph& graph, const PassOptions& options = {});

}  // namespace lowtide
