// Gradients of what processes do together.
#include <gtest/gtest.h>

#include "grad/gradient_text.h"

namespace lowtide {
namespace {

TEST(Gradient, GathersReduceTheGradientOfTheWholeParameter) {
  EXPECT_EQ(backward_of(R"(graph @gather(%part: f32[2, 3] param) {
  %w: f32[4, 3] = AllGather(group=0, ranks=2) %part
  %y: f32[4, 3] = Exp %w
  %z: f32[4, 3] = Add %y, %w
  return %z output
})"),
            R"(
  %z_grad: f32[4, 3] = YieldOp(grads=[0]) %z
  %w_grad: f32[4, 3] = Mul %z_grad, %y  // gradient of:
  %w_grad_1: f32[4, 3] = Add %z_grad, %w_grad  // gradient of:
  %part_grad: f32[2, 3] = ReduceScatter(group=0, ranks=2) %w_grad_1  // gradient of:
  return %part_grad gradient %part
}
)");
}

TEST(Gradient, GathersForAParameterThatSomebodyElseReducesGiveItsWholeGradient) {
  EXPECT_EQ(backward_of(R"(graph @gather(%part: f32[4] input, %p: f32[2, 3] param) {
  %flat: f32[8] = AllGather(group=0, ranks=2) %part, %p
  %y: f32[8] = Exp %flat
  return %y output
})"),
            R"(
  %y_grad: f32[8] = YieldOp(grads=[0]) %y
  %flat_grad: f32[8] = Mul %y_grad, %y  // gradient of:
  %slice: f32[6] = Slice(axis=0, end=6, start=0, step=1) %flat_grad  // gradient of:
  %p_grad: f32[2, 3] = Reshape(shape=[2, 3]) %slice  // gradient of:
  return %p_grad gradient %p
}
)");
}

TEST(Gradient, GathersInAnotherDtypeReduceInTheirOwn) {
  EXPECT_EQ(backward_of(R"(graph @gather(%a: f32[2] param, %b: f32[2, 2] param) {
  %flat: f32[4] = Reshape(shape=[4]) %b
  %both: f32[6] = Concat(axis=0) %a, %flat
  %sent: bf16[6] = Cast(to=bf16) %both
  %w: bf16[12] = AllGather(group=0, ranks=2, reduce=f32) %sent, %a, %b
  %y: bf16[12] = Exp %w
  return %y output
})"),
            R"(
  %y_grad: bf16[12] = YieldOp(grads=[0]) %y
  %w_grad: bf16[12] = Mul %y_grad, %y  // gradient of:
  %cast: f32[12] = Cast(to=f32) %w_grad  // gradient of:
  %reduce_scatter: f32[6] = ReduceScatter(group=0, ranks=2) %cast  // gradient of:
  %a_grad: f32[2] = Slice(axis=0, end=2, start=0, step=1) %reduce_scatter  // gradient of:
  %slice_1: f32[4] = Slice(axis=0, end=6, start=2, step=1) %reduce_scatter  // gradient of:
  %b_grad: f32[2, 2] = Reshape(shape=[2, 2]) %slice_1  // gradient of:
  %b_grad_1: f32[2, 2] = Copy %b_grad  // gradient of:
  return %a_grad gradient %a, %b_grad_1 gradient %b
}
)");
}

TEST(Gradient, RedistributionsComeBackByTheirSecondKind) {
  EXPECT_EQ(backward_of(R"(graph @columns_then_rows(%x: f32[4, n] input grad, %w: f32[4, n] param) {
  %v: f32[4, n] = Redistribute(axis=0, gradient="sum", group=0, kind="same", ranks=2) %x
  %h: f32[4, n] = Mul %v, %w
  %y: f32[4, n] = Redistribute(axis=0, gradient="same", group=0, kind="sum", ranks=2) %h
  %p: f32[2, n] = Redistribute(axis=0, gradient="gather", group=0, kind="part", ranks=2) %y
  return %p output
})"),
            R"(
  %p_grad: f32[2, n] = YieldOp(grads=[0]) %p
  %y_grad: f32[4, n] = Redistribute(axis=0, gradient="part", group=0, kind="gather", ranks=2) %p_grad  // gradient of:
  %v_grad: f32[4, n] = Mul %y_grad, %w  // gradient of:
  %w_grad: f32[4, n] = Mul %y_grad, %v  // gradient of:
  %x_grad: f32[4, n] = Redistribute(axis=0, gradient="same", group=0, kind="sum", ranks=2) %v_grad  // gradient of:
  return %x_grad gradient %x, %w_grad gradient %w
}
)");
}

}  // namespace
}  // namespace lowtide
