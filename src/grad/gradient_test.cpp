#include "grad/gradient.h"

#include <gtest/gtest.h>

#include "grad/gradient_text.h"

namespace lowtide {
namespace {

TEST(Gradient, AnMlpWithAFrozenInputStashesOnlyWhatItsGradientsRead) {
  EXPECT_EQ(
      gradient_of(R"(graph @mlp(%x: f32[batch, 4] input, %w: f32[3, 4] param, %c: f32[3] param, %s: f32[3] buffer) {
  %h: f32[batch, 3] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %x, %w, %c  // fc  model.py:41
  %y: f32[batch, 3] = Relu %h  // act  model.py:42
  %l: f32[] = ReduceMean(axes=[0, 1], keepdims=false) %y  //   model.py:43
  %s1: f32[3] = Add %s, %c
  return %l output, %s1 update %s
})"),
      R"(graph @mlp(%x: f32[batch, 4] input, %w: f32[3, 4] param, %c: f32[3] param, %s: f32[3] buffer) {
  %h: f32[batch, 3] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %x, %w, %c  // fc  model.py:41
  %y: f32[batch, 3] = Relu %h  // act  model.py:42
  %l: f32[] = ReduceMean(axes=[0, 1], keepdims=false) %y  //   model.py:43
  %s1: f32[3] = Add %s, %c
  %l_grad: f32[] = YieldOp(grads=[0]) %l
  %constant: i64[] = Constant(dtype=i64, int_value=3*batch)  // gradient of:   model.py:43
  %cast: f32[] = Cast(to=f32) %constant  // gradient of:   model.py:43
  %div: f32[] = Div %l_grad, %cast  // gradient of:   model.py:43
  %unsqueeze: f32[1, 1] = Unsqueeze(axes=[0, 1]) %div  // gradient of:   model.py:43
  %y_grad: f32[batch, 3] = Expand(shape=[batch, 3]) %unsqueeze  // gradient of:   model.py:43
  %h_grad: f32[batch, 3] = ReluGrad %y_grad, %y  // gradient of: act  model.py:42
  %w_grad: f32[3, 4] = Gemm(alpha=1.0, beta=1.0, transA=true, transB=false) %h_grad, %x  // gradient of: fc  model.py:41
  %c_grad: f32[3] = ReduceSum(axes=[0], keepdims=false) %h_grad  // gradient of: fc  model.py:41
  return %s1 update %s, %w_grad gradient %w, %c_grad gradient %c
}
)");
}

TEST(Gradient, AFrozenLinearDoesNotKeepItsInput) {
  EXPECT_EQ(backward_of(R"(graph @frozen(%x: f32[b, s, 4] input grad, %w: f32[4, 3] param frozen, %v: f32[3, 2] param) {
  %g: f32[b, s, 4] = Neg %x
  %h: f32[b, s, 3] = MatMul %g, %w  // fc
  %y: f32[b, s, 2] = MatMul %h, %v  // head
  return %y output
})"),
            R"(
  %y_grad: f32[b, s, 2] = YieldOp(grads=[0]) %y
  %reshape: f32[b*s, 2] = Reshape(shape=[b*s, 2]) %y_grad  // gradient of: head
  %reshape_1: f32[b*s, 3] = Reshape(shape=[b*s, 3]) %h  // gradient of: head
  %v_grad: f32[3, 2] = Gemm(alpha=1.0, beta=1.0, transA=true, transB=false) %reshape_1, %reshape  // gradient of: head
  %gemm_1: f32[b*s, 3] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %reshape, %v  // gradient of: head
  %h_grad: f32[b, s, 3] = Reshape(shape=[b, s, 3]) %gemm_1  // gradient of: head
  %reshape_3: f32[b*s, 3] = Reshape(shape=[b*s, 3]) %h_grad  // gradient of: fc
  %gemm: f32[b*s, 4] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %reshape_3, %w  // gradient of: fc
  %g_grad: f32[b, s, 4] = Reshape(shape=[b, s, 4]) %gemm  // gradient of: fc
  %x_grad: f32[b, s, 4] = Neg %g_grad  // gradient of:
  return %x_grad gradient %x, %v_grad gradient %v
}
)");
}

TEST(Gradient, NothingIsBuiltForInputsThatNeedNone) {
  EXPECT_EQ(backward_of(R"(graph @none(%x: f32[2] input, %w: f32[2] param frozen) {
  %y: f32[2] = Mul %x, %w
  return %y output
})"),
            R"(
  () = YieldOp(grads=[]) %y
  return
}
)");
}

TEST(Gradient, DetachCutsAndUnreachedInputsGetNothing) {
  EXPECT_EQ(backward_of(R"(graph @cut(%x: f32[2] input grad, %w: f32[2] param, %u: f32[2] param) {
  %d: f32[2] = Detach %x
  %y: f32[2] = Mul %d, %w
  %z: f32[2] = Exp %u
  return %y output
})"),
            R"(
  %y_grad: f32[2] = YieldOp(grads=[0]) %y
  %w_grad: f32[2] = Mul %y_grad, %d  // gradient of:
  return %w_grad gradient %w
}
)");
}

TEST(Gradient, AnInputThatIsChangedHasTheGradientOfWhatItBecame) {
  EXPECT_EQ(backward_of(R"(graph @clip(%x: f32[2] input, %w: f32[2] param) {
  %c: f32[2] = Clip(max=1.0, min=-1.0) %w
  %d: f32[2] = Detach %c
  %y: f32[2] = Mul %x, %d
  return %y output, %d update %w
})"),
            R"(
  %y_grad: f32[2] = YieldOp(grads=[0]) %y
  %d_grad: f32[2] = Mul %y_grad, %x  // gradient of:
  return %d update %w, %d_grad gradient %w
}
)");
}

TEST(Gradient, AnInputBehindAStepFunctionGetsZeros) {
  EXPECT_EQ(backward_of(R"(graph @step(%x: f32[2] input grad, %w: f32[2] param) {
  %r: f32[2] = Round %x
  %y: f32[2] = Add %r, %w
  return %y output
})"),
            R"(
  %y_grad: f32[2] = YieldOp(grads=[0]) %y
  %x_grad: f32[2] = ConstantOfShape(dtype=f32, shape=[2], value=0.0)  // gradient of:
  %w_grad: f32[2] = Copy %y_grad  // gradient of:
  return %x_grad gradient %x, %w_grad gradient %w
}
)");
}

TEST(Gradient, OutputsThatNeedNoneSendNone) {
  EXPECT_EQ(backward_of(R"(graph @two(%x: f32[2] input grad) {
  %a: f32[2] = Exp %x
  %b: f32[2] = Sin %x
  %i: i64[] = ArgMax(axis=0, keepdims=false) %x
  return %a output, %b output, %i output
})",
                        {false, true, true}),
            R"(
  %b_grad: f32[2] = YieldOp(grads=[1]) %a, %b, %i
  %cos: f32[2] = Cos %x  // gradient of:
  %x_grad: f32[2] = Mul %b_grad, %cos  // gradient of:
  return %x_grad gradient %x
}
)");
}

TEST(Gradient, AnInputThatIsAnOutputAndAnOutputReturnedTwice) {
  EXPECT_EQ(backward_of(R"(graph @same(%x: f32[2] input grad, %w: f32[2] param) {
  %y: f32[2] = Mul %x, %w
  return %x output, %y output, %y output
})"),
            R"(
  %x_grad: f32[2], %y_grad: f32[2], %y_grad_1: f32[2] = YieldOp(grads=[0, 1, 2]) %x, %y, %y
  %y_grad_2: f32[2] = Add %y_grad, %y_grad_1  // gradient of:
  %x_grad_1: f32[2] = Mul %y_grad_2, %w  // gradient of:
  %w_grad: f32[2] = Mul %y_grad_2, %x  // gradient of:
  %x_grad_2: f32[2] = Add %x_grad, %x_grad_1  // gradient of:
  return %x_grad_2 gradient %x, %w_grad gradient %w
}
)");
}

TEST(Gradient, NoTwoGradientsShareBytes) {
  EXPECT_EQ(backward_of(R"(graph @shared(%x: f32[4] input grad, %w: f32[4] param, %v: f32[2, 2] param) {
  %y: f32[4] = Add %x, %w
  %z: f32[2, 2] = Reshape(shape=[2, 2]) %y
  %e: f32[2, 2] = Exp %z
  %t: f32[2, 2] = Add %e, %v
  return %t output
})"),
            R"(
  %t_grad: f32[2, 2] = YieldOp(grads=[0]) %t
  %z_grad: f32[2, 2] = Mul %t_grad, %e  // gradient of:
  %y_grad: f32[4] = Reshape(shape=[4]) %z_grad  // gradient of:
  %w_grad: f32[4] = Copy %y_grad  // gradient of:
  %v_grad: f32[2, 2] = Copy %t_grad  // gradient of:
  return %y_grad gradient %x, %w_grad gradient %w, %v_grad gradient %v
}
)");
}

TEST(Gradient, ManyUsesAddUpFromLastToFirst) {
  EXPECT_EQ(backward_of(R"(graph @tied(%x: i64[n] input, %w: f32[5, 3] param) {
  %h: f32[n, 3] = Gather(axis=0, padding_idx=1) %w, %x
  %a: f32[n, 3] = Tanh %h  // a
  %b: f32[n, 3] = Add %a, %h  // b
  %l: f32[n, 5] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %b, %w  // head
  return %l output
})"),
            R"(
  %l_grad: f32[n, 5] = YieldOp(grads=[0]) %l
  %w_grad: f32[5, 3] = Gemm(alpha=1.0, beta=1.0, transA=true, transB=false) %l_grad, %b  // gradient of: head
  %b_grad: f32[n, 3] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=false) %l_grad, %w  // gradient of: head
  %h_grad: f32[n, 3] = TanhGrad %b_grad, %a  // gradient of: a
  %h_grad_1: f32[n, 3] = Add %b_grad, %h_grad  // gradient of: a
  %w_grad_1: f32[5, 3] = GatherGrad(axis=0, padding_idx=1, shape=[5, 3]) %h_grad_1, %x  // gradient of:
  %w_grad_2: f32[5, 3] = Add %w_grad, %w_grad_1  // gradient of:
  return %w_grad_2 gradient %w
}
)");
}

TEST(Gradient, SlicesOfOneValueGiveOneConcat) {
  EXPECT_EQ(backward_of(R"(graph @qkv(%x: f32[n, 12] input grad) {
  %y: f32[n, 12] = Neg %x  // qkv
  %q: f32[n, 4] = Slice(axis=1, end=4, start=0, step=1) %y  // split
  %k: f32[n, 4] = Slice(axis=1, end=8, start=4, step=1) %y  // split
  %v: f32[n, 4] = Slice(axis=1, end=12, start=8, step=1) %y  // split
  return %q output, %k output, %v output
})"),
            R"(
  %q_grad: f32[n, 4], %k_grad: f32[n, 4], %v_grad: f32[n, 4] = YieldOp(grads=[0, 1, 2]) %q, %k, %v
  %concat: f32[n, 12] = Concat(axis=1) %q_grad, %k_grad, %v_grad  // gradient of: split
  %x_grad: f32[n, 12] = Neg %concat  // gradient of: qkv
  return %x_grad gradient %x
}
)");
}

TEST(Gradient, SlicesWithGapsAreConcatenatedAndPadded) {
  EXPECT_EQ(backward_of(R"(graph @gaps(%x: f32[n, 12] input grad) {
  %a: f32[n, 2] = Slice(axis=1, end=4, start=2, step=1) %x
  %b: f32[n, 4] = Slice(axis=1, end=8, start=4, step=1) %x
  %c: f32[1, 12] = Slice(axis=0, end=n, start=n - 1, step=1) %x
  %d: f32[n, 4] = Slice(axis=1, end=12, start=0, step=3) %x
  return %a output, %b output, %c output, %d output
})"),
            R"(
  %a_grad: f32[n, 2], %b_grad: f32[n, 4], %c_grad: f32[1, 12], %d_grad: f32[n, 4] = YieldOp(grads=[0, 1, 2, 3]) %a, %b, %c, %d
  %constant_of_shape: f32[n, 12] = ConstantOfShape(dtype=f32, shape=[n, 12], value=0.0)  // gradient of:
  %x_grad: f32[n, 12] = SliceScatter(axis=1, end=12, start=0, step=3) %constant_of_shape, %d_grad  // gradient of:
  %pad: f32[n, 12] = Pad(mode="constant", pads=[n - 1, 0, 0, 0], value=0.0) %c_grad  // gradient of:
  %concat: f32[n, 6] = Concat(axis=1) %a_grad, %b_grad  // gradient of:
  %pad_1: f32[n, 12] = Pad(mode="constant", pads=[0, 2, 0, 4], value=0.0) %concat  // gradient of:
  %add: f32[n, 12] = Add %pad, %pad_1  // gradient of:
  %x_grad_1: f32[n, 12] = Add %x_grad, %add  // gradient of:
  return %x_grad_1 gradient %x
}
)");
}

TEST(Gradient, ACallKeepsItsOperandsAndResults) {
  EXPECT_EQ(gradient_of(R"(graph @call(%x: f32[n] input grad, %i: i64[n] input, %w: f32[n] param frozen) {
  %y: f32[n] = Exp %x
  %z: f32[n], %c: i64[n] = aten::mystery.default(dim=1, operands=["self", "index", "weight"]) %y, %i, %w  // moe  model.py:7
  %p: f32[n] = PythonOp "mod.Class"(call=0) %w
  %o: f32[n] = Add %z, %p
  return %o output
})"),
            R"(graph @call(%x: f32[n] input grad, %i: i64[n] input, %w: f32[n] param frozen) {
  %y: f32[n] = Exp %x
  %z: f32[n], %c: i64[n], %ctx: ctx[] = aten::mystery.default(dim=1, operands=["self", "index", "weight"]) %y, %i, %w  // moe  model.py:7
  %p: f32[n] = PythonOp "mod.Class"(call=0) %w
  %o: f32[n] = Add %z, %p
  %o_grad: f32[n] = YieldOp(grads=[0]) %o
  %y_grad: f32[n], _, _ = CallGrad "aten::mystery.default"(num_grads=2, num_inputs=3) %ctx, %o_grad, _, %y, %i, %w, %z, %c  // gradient of: moe  model.py:7
  %x_grad: f32[n] = Mul %y_grad, %y  // gradient of:
  return %x_grad gradient %x
}
)");
}

TEST(Gradient, ActivationsReadTheirResultWhereItIsEnough) {
  EXPECT_EQ(backward_of(R"(graph @activations(%x: f32[n] input grad) {
  %a: f32[n] = Relu %x
  %b: f32[n] = Tanh %a
  %c: f32[n] = Sigmoid %b
  %d: f32[n] = Softmax(axis=0) %c
  %e: f32[n] = Gelu %d
  %f: f32[n] = Dropout(ratio=0.1, stream=3) %e
  %g: f32[n] = Exp %f
  return %g output
})"),
            R"(
  %g_grad: f32[n] = YieldOp(grads=[0]) %g
  %f_grad: f32[n] = Mul %g_grad, %g  // gradient of:
  %e_grad: f32[n] = DropoutGrad(ratio=0.1, stream=3) %f_grad  // gradient of:
  %d_grad: f32[n] = GeluGrad %e_grad, %d  // gradient of:
  %c_grad: f32[n] = SoftmaxGrad(axis=0) %d_grad, %d  // gradient of:
  %b_grad: f32[n] = SigmoidGrad %c_grad, %c  // gradient of:
  %a_grad: f32[n] = TanhGrad %b_grad, %b  // gradient of:
  %x_grad: f32[n] = ReluGrad %a_grad, %a  // gradient of:
  return %x_grad gradient %x
}
)");
}

TEST(Gradient, FunctionsOfSumsKeepNoSum) {
  EXPECT_EQ(backward_of(R"(graph @sums(%x: f32[b, s, 4] input grad, %c: f32[4] param, %r: f32[b, s, 4] input grad) {
  %a: f32[b, s, 4] = BiasSoftmax(axis=2) %x, %c
  %d: f32[b, s, 4] = FastGelu %a, %c
  %e: f32[b, s, 4] = BiasDropout(ratio=0.1, stream=3) %d, %c, %r
  return %e output
})"),
            R"(
  %e_grad: f32[b, s, 4] = YieldOp(grads=[0]) %e
  %d_grad: f32[b, s, 4] = DropoutGrad(ratio=0.1, stream=3) %e_grad  // gradient of:
  %c_grad: f32[4] = ReduceSum(axes=[0, 1], keepdims=false) %d_grad  // gradient of:
  %a_grad: f32[b, s, 4] = FastGeluGrad %d_grad, %a, %c  // gradient of:
  %c_grad_1: f32[4] = ReduceSum(axes=[0, 1], keepdims=false) %a_grad  // gradient of:
  %c_grad_2: f32[4] = Add %c_grad, %c_grad_1  // gradient of:
  %x_grad: f32[b, s, 4] = SoftmaxGrad(axis=2) %a_grad, %a  // gradient of:
  %c_grad_3: f32[4] = ReduceSum(axes=[0, 1], keepdims=false) %x_grad  // gradient of:
  %c_grad_4: f32[4] = Add %c_grad_2, %c_grad_3  // gradient of:
  %r_grad: f32[b, s, 4] = Copy %e_grad  // gradient of:
  return %x_grad gradient %x, %c_grad_4 gradient %c, %r_grad gradient %r
}
)");
}

TEST(Gradient, BroadcastOperandsAreSummedDown) {
  EXPECT_EQ(
      backward_of(
          R"(graph @broadcast(%x: f32[n, 3] input grad, %c: f32[3] param, %m: f32[n, 1] input grad, %k: f32[2, 1, 3] param, %s: f32[] param) {
  %a: f32[n, 3] = Add %x, %c
  %b: f32[n, 3] = Sub %a, %m
  %d: f32[2, n, 3] = Mul %b, %k
  %e: f32[2, n, 3] = Div %d, %s
  return %e output
})"),
      R"(
  %e_grad: f32[2, n, 3] = YieldOp(grads=[0]) %e
  %d_grad: f32[2, n, 3] = Div %e_grad, %s  // gradient of:
  %mul: f32[2, n, 3] = Mul %d_grad, %e  // gradient of:
  %reduce_sum: f32[] = ReduceSum(axes=[0, 1, 2], keepdims=false) %mul  // gradient of:
  %s_grad: f32[] = Neg %reduce_sum  // gradient of:
  %mul_1: f32[2, n, 3] = Mul %d_grad, %k  // gradient of:
  %b_grad: f32[n, 3] = ReduceSum(axes=[0], keepdims=false) %mul_1  // gradient of:
  %mul_2: f32[2, n, 3] = Mul %d_grad, %b  // gradient of:
  %k_grad: f32[2, 1, 3] = ReduceSum(axes=[1], keepdims=true) %mul_2  // gradient of:
  %reduce_sum_3: f32[n, 1] = ReduceSum(axes=[1], keepdims=true) %b_grad  // gradient of:
  %m_grad: f32[n, 1] = Neg %reduce_sum_3  // gradient of:
  %c_grad: f32[3] = ReduceSum(axes=[0], keepdims=false) %b_grad  // gradient of:
  return %b_grad gradient %x, %c_grad gradient %c, %m_grad gradient %m, %k_grad gradient %k, %s_grad gradient %s
}
)");
}

// A gradient that two operands share had the last one's text of their size, and the graph input was of another type.
TEST(Gradient, EachOperandsGradientHasItsOwnTextOfASize) {
  EXPECT_EQ(backward_of(
                R"(graph @blocks(%x: f32[n] input grad, %b: f32[2*k] input grad) {
  %y: f32[min(2*k, n)] = Slice(axis=0, end=min(2*k, n), start=0, step=1) %b
  %e: f32[n] = Add %x, %y
  return %e output
})"),
            R"(
  %e_grad: f32[n] = YieldOp(grads=[0]) %e
  %y_grad: f32[min(2*k, n)] = Reshape(shape=[min(2*k, n)]) %e_grad  // gradient of:
  %x_grad: f32[n] = Copy %e_grad  // gradient of:
  %pad: f32[2*k] = Pad(mode="constant", pads=[0, 2*k - min(2*k, n)], value=0.0) %y_grad  // gradient of:
  return %x_grad gradient %x, %pad gradient %b
}
)");
}

TEST(Gradient, PowersOfNumbersNeedNoLogarithm) {
  EXPECT_EQ(backward_of(R"(graph @powers(%x: f32[n] input grad, %e: f32[] param) {
  %two: f32[] = Constant(dtype=f32, value=2.0)
  %half: f32[] = Constant(dtype=f32, value=0.5)
  %a: f32[n] = Pow %x, %two
  %b: f32[n] = Pow %a, %half
  %c: f32[n] = Pow %b, %e
  return %c output
})"),
            R"(
  %c_grad: f32[n] = YieldOp(grads=[0]) %c
  %constant: f32[] = Constant(dtype=f32, value=0.0)  // gradient of:
  %constant_1: f32[] = Constant(dtype=f32, value=-1.0)  // gradient of:
  %add: f32[] = Add %e, %constant_1  // gradient of:
  %pow: f32[n] = Pow %b, %add  // gradient of:
  %mul: f32[n] = Mul %e, %pow  // gradient of:
  %equal: bool[] = Equal %e, %constant  // gradient of:
  %mul_1: f32[n] = Mul %c_grad, %mul  // gradient of:
  %b_grad: f32[n] = Where %equal, %constant, %mul_1  // gradient of:
  %equal_1: bool[n] = Equal %b, %constant  // gradient of:
  %greater_or_equal: bool[] = GreaterOrEqual %e, %constant  // gradient of:
  %and: bool[n] = And %equal_1, %greater_or_equal  // gradient of:
  %log: f32[n] = Log %b  // gradient of:
  %mul_2: f32[n] = Mul %c, %log  // gradient of:
  %mul_3: f32[n] = Mul %c_grad, %mul_2  // gradient of:
  %where_1: f32[n] = Where %and, %constant, %mul_3  // gradient of:
  %e_grad: f32[] = ReduceSum(axes=[0], keepdims=false) %where_1  // gradient of:
  %constant_2: f32[] = Constant(dtype=f32, value=-0.5)  // gradient of:
  %pow_1: f32[n] = Pow %a, %constant_2  // gradient of:
  %constant_3: f32[] = Constant(dtype=f32, value=0.5)  // gradient of:
  %mul_4: f32[n] = Mul %pow_1, %constant_3  // gradient of:
  %a_grad: f32[n] = Mul %b_grad, %mul_4  // gradient of:
  %constant_4: f32[] = Constant(dtype=f32, value=2.0)  // gradient of:
  %mul_6: f32[n] = Mul %x, %constant_4  // gradient of:
  %x_grad: f32[n] = Mul %a_grad, %mul_6  // gradient of:
  return %x_grad gradient %x, %e_grad gradient %e
}
)");
}

TEST(Gradient, LayerNormOfAFrozenWeightMakesOnlyDx) {
  EXPECT_EQ(
      backward_of(
          R"(graph @norm(%x: f32[n, 4] input grad, %w: f32[4] param frozen, %c: f32[4] param frozen, %v: f32[4] param, %d: f32[4] param) {
  %y: f32[n, 4], %m: f32[n], %i: f32[n] = LayerNormalization(axis=1, epsilon=1e-05) %x, %w, %c  // ln
  %z: f32[n, 4], %o: f32[n], %j: f32[n] = LayerNormalization(axis=1, epsilon=1e-05) %y, %v, %d  // ln2
  return %z output
})"),
      R"(
  %z_grad: f32[n, 4] = YieldOp(grads=[0]) %z
  %y_grad: f32[n, 4], %v_grad: f32[4], %d_grad: f32[4] = LayerNormalizationGrad(axis=1) %z_grad, %y, %o, %j, %v  // gradient of: ln2
  %x_grad: f32[n, 4], _, _ = LayerNormalizationGrad(axis=1) %y_grad, %x, %m, %i, %w  // gradient of: ln
  return %x_grad gradient %x, %v_grad gradient %v, %d_grad gradient %d
}
)");
}

TEST(Gradient, BatchNormUpdatesItsStatistics) {
  EXPECT_EQ(
      gradient_of(
          R"(graph @bn(%x: f32[n, 3, 4, 4] input grad, %w: f32[3] param, %c: f32[3] param, %rm: f32[3] buffer, %rv: f32[3] buffer) {
  %y: f32[n, 3, 4, 4], %m: f32[3], %i: f32[3], %nm: f32[3], %nv: f32[3] = BatchNormalization(epsilon=1e-05, momentum=0.1) %x, %w, %c, %rm, %rv
  return %y output, %nm update %rm, %nv update %rv
})"),
      R"(graph @bn(%x: f32[n, 3, 4, 4] input grad, %w: f32[3] param, %c: f32[3] param, %rm: f32[3] buffer, %rv: f32[3] buffer) {
  %y: f32[n, 3, 4, 4], %m: f32[3], %i: f32[3], %nm: f32[3], %nv: f32[3] = BatchNormalization(epsilon=1e-05, momentum=0.1) %x, %w, %c, %rm, %rv
  %y_grad: f32[n, 3, 4, 4] = YieldOp(grads=[0]) %y
  %x_grad: f32[n, 3, 4, 4], %w_grad: f32[3], %c_grad: f32[3] = BatchNormalizationGrad %y_grad, %x, %m, %i, %w  // gradient of:
  return %nm update %rm, %nv update %rv, %x_grad gradient %x, %w_grad gradient %w, %c_grad gradient %c
}
)");
}

TEST(Gradient, AttentionWithABiasThatLearns) {
  EXPECT_EQ(
      backward_of(
          R"(graph @attend(%q: f32[b, 4, s, 8] input grad, %k: f32[b, 2, t, 8] input grad, %v: f32[b, 2, t, 8] input, %bias: f32[1, 4, s, t] param) {
  %y: f32[b, 4, s, 8], %l: f32[b, 4, s] = Attention(dropout=0.0, is_causal=false, scale=0.5, stream=0) %q, %k, %v, %bias
  return %y output
})"),
      R"(
  %y_grad: f32[b, 4, s, 8] = YieldOp(grads=[0]) %y
  %q_grad: f32[b, 4, s, 8], %k_grad: f32[b, 2, t, 8], _, %bias_grad: f32[1, 4, s, t] = AttentionGrad(dropout=0.0, is_causal=false, scale=0.5, stream=0) %y_grad, %q, %k, %v, %y, %l, %bias  // gradient of:
  return %q_grad gradient %q, %k_grad gradient %k, %bias_grad gradient %bias
}
)");
}

TEST(Gradient, CrossEntropyKeepsLogitsAndLogSumExp) {
  EXPECT_EQ(backward_of(R"(graph @loss(%x: f32[n, 7] input grad, %t: i64[n] input) {
  %l: f32[], %z: f32[n] = SoftmaxCrossEntropyLoss(ignore_index=-100, label_smoothing=0.0, reduction="mean") %x, %t
  return %l output
})"),
            R"(
  %l_grad: f32[] = YieldOp(grads=[0]) %l
  %x_grad: f32[n, 7] = SoftmaxCrossEntropyLossGrad(ignore_index=-100, label_smoothing=0.0, reduction="mean") %l_grad, %x, %t, %z  // gradient of:
  return %x_grad gradient %x
}
)");
}

TEST(Gradient, ConvolutionMakesWantedGradientsOnly) {
  EXPECT_EQ(backward_of(R"(graph @conv(%x: f32[n, 3, 8, 8] input, %w: f32[4, 3, 3, 3] param, %c: f32[4] param) {
  %y: f32[n, 4, 8, 8] = Conv(dilations=[1, 1], group=1, pads=[1, 1, 1, 1], strides=[1, 1]) %x, %w, %c
  %z: f32[n, 4, 8, 8], %i: i64[n, 4, 8, 8] = MaxPool(ceil_mode=false, dilations=[1, 1], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1]) %y
  return %z output
})"),
            R"(
  %z_grad: f32[n, 4, 8, 8] = YieldOp(grads=[0]) %z
  %y_grad: f32[n, 4, 8, 8] = MaxPoolGrad(shape=[n, 4, 8, 8]) %z_grad, %i  // gradient of:
  _, %w_grad: f32[4, 3, 3, 3], %c_grad: f32[4] = ConvGrad(dilations=[1, 1], group=1, pads=[1, 1, 1, 1], strides=[1, 1]) %y_grad, %x, %w  // gradient of:
  return %w_grad gradient %w, %c_grad gradient %c
}
)");
}

TEST(Gradient, AFrozenConvolutionDoesNotKeepItsInput) {
  EXPECT_EQ(backward_of(R"(graph @conv(%x: f32[n, 3, 8, 8] input grad, %w: f32[4, 3, 3, 3] param frozen) {
  %h: f32[n, 3, 8, 8] = Neg %x
  %y: f32[n, 4, 8, 8] = Conv(dilations=[1, 1], group=1, pads=[1, 1, 1, 1], strides=[1, 1]) %h, %w
  return %y output
})"),
            R"(
  %y_grad: f32[n, 4, 8, 8] = YieldOp(grads=[0]) %y
  %constant: f32[] = Constant(dtype=f32, value=0.0)  // gradient of:
  %expand: f32[n, 3, 8, 8] = Expand(shape=[n, 3, 8, 8]) %constant  // gradient of:
  %h_grad: f32[n, 3, 8, 8], _, _ = ConvGrad(dilations=[1, 1], group=1, pads=[1, 1, 1, 1], strides=[1, 1]) %y_grad, %expand, %w  // gradient of:
  %x_grad: f32[n, 3, 8, 8] = Neg %h_grad  // gradient of:
  return %x_grad gradient %x
}
)");
}

}  // namespace
}  // namespace lowtide
