#include <gtest/gtest.h>

#include "grad/gradient_text.h"

namespace lowtide {
namespace {

TEST(Gradient, AnInspectedValueHasAllOfItsGradientInspected) {
  EXPECT_EQ(backward_of(R"(graph @g(%x: f32[n] input, %w: f32[n] param) {
  %h: f32[n] = Mul %x, %w
  () = Inspect(name="h_forward", record=0) %h
  %y: f32[n] = Tanh %h
  () = Inspect(name="y_forward", record=1) %y
  %z: f32[n] = Neg %h
  return %y output, %z output
})"),
            R"(
  %y_grad: f32[n], %z_grad: f32[n] = YieldOp(grads=[0, 1]) %y, %z
  %h_grad: f32[n] = Neg %z_grad  // gradient of:
  () = Inspect(name="y_backward", record=1, sources=[0]) %y_grad  // gradient of:
  %h_grad_1: f32[n] = TanhGrad %y_grad, %y  // gradient of:
  %h_grad_2: f32[n] = Add %h_grad, %h_grad_1  // gradient of:
  () = Inspect(name="h_backward", record=0, sources=[0, 1]) %h_grad_2  // gradient of:
  %w_grad: f32[n] = Mul %h_grad_2, %x  // gradient of:
  return %w_grad gradient %w
}
)");
}

TEST(Gradient, WhatIsThereForInspectionGivesItsGradientToNobodyElse) {
  EXPECT_EQ(backward_of(R"(graph @g(%x: f32[n] input, %w: f32[n] param) {
  %y: f32[n] = Swish %w
  %s: f32[n] = Sigmoid %w
  () = Inspect(name="s_forward", record=0) %s
  %old: f32[n] = Mul %w, %s
  () = SameGradient %old, %y
  %z: f32[n] = Neg %y
  return %z output
})"),
            R"(
  %z_grad: f32[n] = YieldOp(grads=[0]) %z
  %y_grad: f32[n] = Neg %z_grad  // gradient of:
  %s_grad: f32[n] = Mul %y_grad, %w  // gradient of:
  () = Inspect(name="s_backward", record=0) %s_grad  // gradient of:
  %w_grad: f32[n] = SwishGrad %y_grad, %w  // gradient of:
  return %w_grad gradient %w
}
)");
}

}  // namespace
}  // namespace lowtide
