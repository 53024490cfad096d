#include <gtest/gtest.h>

#include "grad/gradient_text.h"

namespace lowtide {
namespace {

// PyTorch casts an activation for each product, and adds what these give when it is f32 again; one cast of a parameter
// serves them all.
TEST(Gradient, WhatOneNarrowingCastIsGivenIsAddedBeforeItIsRounded) {
  EXPECT_EQ(backward_of(R"(graph @heads(%x: f32[b, 4] input grad, %w: f32[4] param) {
  %c: bf16[b, 4] = Cast(to=bf16) %x
  %r: bf16[b, 2, 2] = Reshape(shape=[b, 2, 2]) %c
  %u: bf16[b, 2, 2] = Tanh %r
  %v: bf16[b, 2, 2] = Relu %r
  %cw: bf16[4] = Cast(to=bf16) %w
  %p: bf16[4] = Tanh %cw
  %q: bf16[4] = Relu %cw
  return %u output, %v output, %p output, %q output
})"),
            R"(
  %u_grad: bf16[b, 2, 2], %v_grad: bf16[b, 2, 2], %p_grad: bf16[4], %q_grad: bf16[4] = YieldOp(grads=[0, 1, 2, 3]) %u, %v, %p, %q
  %cw_grad: bf16[4] = ReluGrad %q_grad, %q  // gradient of:
  %cw_grad_1: bf16[4] = TanhGrad %p_grad, %p  // gradient of:
  %cw_grad_2: bf16[4] = Add %cw_grad, %cw_grad_1  // gradient of:
  %w_grad: f32[4] = Cast(to=f32) %cw_grad_2  // gradient of:
  %r_grad: bf16[b, 2, 2] = ReluGrad %v_grad, %v  // gradient of:
  %r_grad_1: bf16[b, 2, 2] = TanhGrad %u_grad, %u  // gradient of:
  %cast: f32[b, 2, 2] = Cast(to=f32) %r_grad  // gradient of:
  %cast_1: f32[b, 2, 2] = Cast(to=f32) %r_grad_1  // gradient of:
  %r_grad_2: f32[b, 2, 2] = Add %cast, %cast_1  // gradient of:
  %c_grad: f32[b, 4] = Reshape(shape=[b, 4]) %r_grad_2  // gradient of:
  return %c_grad gradient %x, %w_grad gradient %w
}
)");
}

}  // namespace
}  // namespace lowtide
