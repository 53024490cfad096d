#include "ops/inference.h"

#include <gtest/gtest.h>

#include "ir/parse.h"
#include "ops/builder.h"

namespace lowtide {
namespace {

// A graph of one node over %a, %b, %c; its output's type matters only where inference succeeds.
std::string message_of(std::string_view inputs, std::string_view node) {
  const Graph graph = parse(concat("graph @bad(", inputs, ") {\n  ", node, "  // block.fc  train.py:41\n  return\n}"));
  try {
    verify_types(graph);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidGraph);
    return error.what();
  }
  return "no error";
}

struct BadNode {
  const char* inputs;
  const char* node;
  const char* message;
};

constexpr BadNode kBadNodes[] = {
    {"%a: f32[N, 64] input, %b: f32[32, 8] input", "%y: f32[N, 8] = MatMul %a, %b",
     "MatMul: inner dims differ: left is f32[N, 64], right is f32[32, 8]"},
    {"%a: f32[3, 4] input, %b: f32[4, 2] input",
     "%y: f32[3, 2] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %a, %b",
     "Gemm: inner dims differ: left is f32[3, 4], right is f32[4, 2] transposed"},
    {"%a: f32[2, 3, 4] input, %b: f32[4, 2] input",
     "%y: f32[3, 2] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=false) %a, %b",
     "Gemm: operand 0 must have 2 dims, is f32[2, 3, 4]"},
    {"%a: f32[N, 3] input, %b: f32[M, 3] input", "%y: f32[N, 3] = Add %a, %b",
     "Add: shapes do not broadcast: [N, 3] and [M, 3]"},
    {"%a: f32[3] input, %b: i64[3] input", "%y: f32[3] = Mul %a, %b",
     "Mul: operands differ in dtype: f32[3] and i64[3]"},
    {"%a: bool[3] input", "%y: bool[3] = Neg %a", "Neg: operand 0 must be numbers, is bool[3]"},
    {"%a: i64[3] input", "%y: i64[3] = Exp %a", "Exp: operand 0 must be floating, is i64[3]"},
    {"%a: f32[3] input, %b: f32[3] input", "%y: f32[3] = And %a, %b", "And: operand 0 must be bool, is f32[3]"},
    {"%a: f32[3] input", "%y: f32[4] = Neg %a", "Neg: %y is f32[4], inference gives f32[3]"},
    {"%a: f32[3] input", "%y: f64[3] = Neg %a", "Neg: %y is f64[3], inference gives f32[3]"},
    {"%a: f32[3] input, %b: f32[3] input", "%y: f32[3] = Where %a, %a, %b",
     "Where: the condition must be bool, is f32[3]"},
    {"%a: f32[3] input, %b: f32[4] input", "%y: f32[3] = Overwrite(passes=true) %a, %b",
     "Overwrite: x must have shape [3], is f32[4]"},
    {"%a: f32[N, 3] input", "%y: f32[3, 3] = Reshape(shape=[3, 3]) %a",
     "Reshape: element counts differ: f32[N, 3] and shape [3, 3]"},
    {"%a: f32[2, 3] input", "%y: f32[3, 2] = Transpose(perm=[1, 1]) %a",
     "Transpose: perm=[1, 1] is no permutation of the dims of f32[2, 3]"},
    {"%a: f32[2, 3] input", "%y: f32[2, 3] = Slice(axis=2, end=3, start=0, step=1) %a",
     "Slice: axis=2 is no axis of a tensor of rank 2"},
    {"%a: f32[2, 3] input", "%y: f32[2, 4] = Slice(axis=1, end=4, start=0, step=1) %a",
     "Slice: start=0, end=4 must satisfy 0 <= start <= end <= 3 on axis 1 of f32[2, 3]"},
    {"%a: f32[5, 2, 4] input, %b: i64[3, 2] input, %c: i64[2] input",
     "%y: f32[2] = CtcLoss(blank=0, normalised=true, zero_infinity=false) %a, %b, %c, %c",
     "CtcLoss: targets must have shape [2, 2], is i64[3, 2]"},
    {"%a: f32[5, 2, 4] input, %b: i32[3] input, %c: i64[2] input",
     "%y: f32[2] = CtcLoss(blank=0, normalised=true, zero_infinity=false) %a, %b, %c, %c",
     "CtcLoss: targets and lengths must be i64, are i32[3]"},
    {"%a: f32[5, 2, 4] input, %b: i64[3] input, %c: i64[2] input",
     "%y: f32[2] = CtcLoss(blank=4, normalised=true, zero_infinity=false) %a, %b, %c, %c",
     "CtcLoss: blank=4 is no class of f32[5, 2, 4]"},
    {"%a: f32[4, 2, 6] input, %b: f32[6, 3] input, %c: f32[2, 3] input",
     "%y: f32[4, 2, 3], %s: f32[2, 3], _, _, _ = Recurrence(cell=\"tanh\", reverse=false) %a, %b, %c",
     "Recurrence: gates must have shape [4, 2, 3], is f32[4, 2, 6]"},
    {"%a: f32[4, 2, 12] input, %b: f32[12, 3] input, %c: f32[2, 3] input",
     "%y: f32[4, 2, 3], %s: f32[2, 3], _, _, _ = Recurrence(cell=\"lstm\", reverse=false) %a, %b, %c",
     "Recurrence: cell=\"lstm\" needs memory"},
    {"%a: f32[4, 2, 3] input, %b: f32[3, 3] input, %c: f32[2, 3] input, %l: i32[2] input",
     "%y: f32[4, 2, 3], %s: f32[2, 3], _, _, _ = Recurrence(cell=\"relu\", reverse=false) %a, %b, %c, _, _, %l",
     "Recurrence: lengths must be i64, are i32[2]"},
    {"%a: f32[4, 2, 3] input, %b: f32[3, 3] input, %c: f32[2, 3] input",
     "%y: f32[4, 2, 3], %s: f32[2, 3], _, _, _ = Recurrence(cell=\"elman\", reverse=false) %a, %b, %c",
     "Recurrence: cell=\"elman\": expected one of lstm, gru, tanh, relu"},
    {"%a: f32[2, 3] input, %b: f32[3, 4] input", "%y: i64[3, 4] = SearchSorted(right=false) %a, %b",
     "SearchSorted: ascending must have shape [3, 3], is f32[2, 3]"},
    {"%a: f32[2, 3] input", "%y: f32[6, 3] = AllGather(group=0, ranks=2) %a",
     "AllGather: %y is f32[6, 3], inference gives f32[4, 3]"},
    {"%a: f32[] input", "%y: f32[] = AllGather(group=0, ranks=2) %a",
     "AllGather: operand 0 must have 1 or more dims, is f32[]"},
    {"%a: f32[2] input, %b: f64[3] input", "%y: f32[4] = AllGather(group=0, ranks=2) %a, %b",
     "AllGather: the elements of f64[3] are not gathered as f32[4]"},
    {"%a: f32[5, 3] input", "%y: f32[2, 3] = ReduceScatter(group=0, ranks=2) %a",
     "ReduceScatter: dim 0 of f32[5, 3] is no multiple of 2"},
    {"%a: f32[4, 5] input",
     "%y: f32[4, 5] = Redistribute(axis=1, gradient=\"gather\", group=0, kind=\"part\", ranks=2) %a",
     "Redistribute: dim 1 of f32[4, 5] is no multiple of 2"},
    {"%a: f32[4, 5] input",
     "%y: f32[4, 5] = Redistribute(axis=2, gradient=\"same\", group=0, kind=\"sum\", ranks=2) %a",
     "Redistribute: axis=2 is no dim of f32[4, 5]"},
    {"%a: f32[4, 5] input",
     "%y: f32[4, 5] = Redistribute(axis=0, gradient=\"same\", group=0, kind=\"max\", ranks=2) %a",
     "Redistribute: no redistribution is called max"},
    {"%a: f32[2, 3] input", "%y: f32[2, 4] = Expand(shape=[2, 4]) %a",
     "Expand: f32[2, 3] does not broadcast to [2, 4]"},
    {"%a: f32[2, 3] input", "%y: f32[2] = Squeeze(axes=[1]) %a", "Squeeze: axis 1 of f32[2, 3] has not size 1"},
    {"%a: f32[2, 3] input", "%y: f32[2, 3] = ReduceSum(axes=[], keepdims=true) %a",
     "ReduceSum: axes must not be empty"},
    {"%a: f32[2, 3] input", "%y: f32[] = ReduceSum(axes=[1, 0], keepdims=false) %a",
     "ReduceSum: axes=[1, 0] must ascend"},
    {"%a: f32[2, 3] input", "%y: f32[2, 3] = Softmax(axis=-1) %a", "Softmax: axis=-1 is no axis of a tensor of rank 2"},
    {"%a: f32[2, N] input", "%y: f32[2, 3] = Softmax(axis=N) %a", "Softmax: attribute axis must be a number, is N"},
    {"%a: f32[2, 3] input", "%y: f32[2, 5], %i: i64[2, 5] = TopK(axis=1, k=5, largest=true) %a",
     "TopK: k=5 is outside of axis 1 of f32[2, 3]"},
    {"%a: f32[2, 3] input", "%y: f32[2, 3] = Dropout(ratio=1.5, stream=0) %a",
     "Dropout: ratio must lie in [0, 1], is 1.5"},
    {"%a: f32[2, 3] input, %b: f32[2] input", "%y: f32[2, 3] = BiasGelu %a, %b",
     "BiasGelu: the bias must have shape [3], is f32[2]"},
    {"%a: f32[2, 3] input, %b: f16[3] input", "%y: f32[2, 3] = FastGelu %a, %b",
     "FastGelu: operands differ in dtype: f32[2, 3] and f16[3]"},
    {"%a: f32[2, 3] input, %b: f32[3] input", "%y: f32[2, 3] = BiasDropout(ratio=0.5, stream=0) %a, %b, %b",
     "BiasDropout: the residual must have shape [2, 3], is f32[3]"},
    {"%a: f32[2, 3] input, %b: f32[3] input", "%y: f32[2, 3] = BiasDropout(ratio=-1.0, stream=0) %a, %b",
     "BiasDropout: ratio must lie in [0, 1], is -1"},
    {"%a: f32[2, 3] input, %b: f32[2] input", "%y: f32[2, 3] = BiasSoftmax(axis=1) %a, %b",
     "BiasSoftmax: the bias is f32[2] and does not broadcast to f32[2, 3]"},
    {"%a: f32[2, 3] input, %b: f32[2] input",
     "%y: f32[2, 3], %m: f32[2], %i: f32[2] = LayerNormalization(axis=1, epsilon=1e-05) %a, %b",
     "LayerNormalization: weight must have shape [3], is f32[2]"},
    {"%a: f32[2, 3] input, %b: f32[3] input",
     "%y: f32[2, 3], %m: f32[3], %i: f32[3], %r: f32[3], _ = BatchNormalization(epsilon=1e-05, momentum=0.1) %a, %b",
     "BatchNormalization: %r cannot exist"},
    {"%a: f32[2, 5, 3] input",
     "%y: f32[2, 5, 3], %m: f32[2, 2], %i: f32[2, 2] = GroupNormalization(epsilon=1e-05, num_groups=2) %a",
     "GroupNormalization: num_groups=2 does not divide the channels of f32[2, 5, 3]"},
    {"%a: f32[N, 7] input, %b: i64[M] input",
     "%y: f32[], %l: f32[N] = SoftmaxCrossEntropyLoss(ignore_index=0, label_smoothing=0.0, reduction=\"mean\") %a, %b",
     "SoftmaxCrossEntropyLoss: labels must have shape [N], is i64[M]"},
    {"%a: f32[2, 4, 3, 8] input, %b: f32[2, 3, 3, 8] input",
     "%y: f32[2, 4, 3, 8], %l: f32[2, 4, 3] = Attention(dropout=0.0, is_causal=false, scale=1.0, stream=0) %a, %b, %b",
     "Attention: the heads of k do not divide those of q: f32[2, 4, 3, 8] and f32[2, 3, 3, 8]"},
    {"%a: f32[2, 4, 3, 8] input, %b: f32[2, 2, 5, 8] input, %c: bool[3, 4] input",
     "%y: f32[2, 4, 3, 8], %l: f32[2, 4, 3] = Attention(dropout=0.0, is_causal=false, scale=1.0, stream=0) %a, %b, %b, "
     "%c",
     "Attention: the mask is bool[3, 4] and does not broadcast to [2, 4, 3, 5]"},
    {"%a: f32[2, 3] input", "%y: f32[2, 3] = RotaryEmbedding %a, %a, %a",
     "RotaryEmbedding: the last dim must be even: f32[2, 3]"},
    {"%a: f32[2, 3] input, %b: f32[3, 3] input", "%y: f32[2, 6] = Concat(axis=1) %a, %b",
     "Concat: operands differ outside of axis 1: f32[2, 3] and f32[3, 3]"},
    {"%a: f32[2, 3] input", "%y: f32[2, 3] = Pad(mode=\"constant\", pads=[0, 1], value=0.0) %a",
     "Pad: pads has 2 entries for rank 2, expected begins then ends"},
    {"%a: f32[5, 3] input, %b: f32[2] input", "%y: f32[2, 3] = Gather(axis=0) %a, %b",
     "Gather: indices must be i64 or i32, are f32[2]"},
    {"%a: f32[5, 3] input, %b: i64[2] input", "%y: f32[2] = GatherElements(axis=0) %a, %b",
     "GatherElements: data and indices differ in rank: f32[5, 3] and i64[2]"},
    {"%a: f32[5, 3] input, %b: i64[2, 3] input", "%y: f32[2] = GatherND %a, %b",
     "GatherND: the last dim of i64[2, 3] must count leading dims of f32[5, 3]"},
    {"%a: f32[5, 3] input, %b: i64[2, 1] input, %c: f32[2] input",
     "%y: f32[5, 3] = ScatterND(reduction=\"add\") %a, %b, %c", "ScatterND: updates must have shape [2, 3], is f32[2]"},
    {"%a: f32[1, 3, 8, 8] input, %b: f32[4, 2, 3, 3] input",
     "%y: f32[1, 4, 6, 6] = Conv(dilations=[1, 1], group=1, pads=[0, 0, 0, 0], strides=[1, 1]) %a, %b",
     "Conv: w f32[4, 2, 3, 3] in 1 groups does not fit the channels of f32[1, 3, 8, 8]"},
    {"%a: f32[1, 3, 2, 8] input, %b: f32[4, 3, 3, 3] input",
     "%y: f32[1, 4, 6, 6] = Conv(dilations=[1, 1], group=1, pads=[0, 0, 0, 0], strides=[1, 1]) %a, %b",
     "Conv: the window is larger than dim 2 of f32[1, 3, 2, 8]"},
    {"%a: f32[1, 3, 8, 8] input, %b: f32[4, 3, 3, 3] input",
     "%y: f32[1, 4, 6, 6] = Conv(dilations=[1, 1], group=1, pads=[0, 0, 0, 0], strides=[0, 1]) %a, %b",
     "Conv: strides=[0, 1]: expected 1 to 2147483647"},
    {"%a: f32[1, 3, 8, 8] input", "%y: f32[1, 3, 4, 4] = Resize(align_corners=false, mode=\"cubic\", sizes=[4, 4]) %a",
     "Resize: mode=\"cubic\": expected one of bilinear, nearest"},
    {"%a: f32[3] input", "%y: f32[] = Constant(dtype=f32, int_value=3)",
     "Constant: a constant of dtype f32 needs attribute value"},
    {"%a: f32[3] input", "%y: f32[4] = Range(dtype=f32, numel=4, start=0.0)",
     "Range: a range of dtype f32 needs attribute step"},
    {"%a: i16[3] input", "%y: u8[12] = PackBits(bits=32, low=0) %a",
     "PackBits: bits=32: expected 1, 2, 4, 8, 16 or 32, and at most the 16 of i16"},
    {"%a: i64[3] input", "%y: u8[2] = PackBits(bits=3, low=0) %a",
     "PackBits: bits=3: expected 1, 2, 4, 8, 16 or 32, and at most the 64 of i64"},
    {"%a: f32[3] input", "%y: u8[2] = PackBits(bits=4, low=0) %a", "PackBits: packs bool and integers, not f32"},
    {"%a: bool[3] input", "%y: u8[1] = PackBits(bits=1, low=1) %a", "PackBits: low=1: must be 0 for bool"},
    {"%a: u8[3] input", "%y: bool[32] = UnpackBits(bits=1, low=0, shape=[32], to=bool) %a",
     "UnpackBits: bool[32] in 1 bits each is u8[4], the operand is u8[3]"},
};

TEST(Inference, NamesTheOpTheOperandsAndTheUsersLine) {
  for (const BadNode& bad : kBadNodes)
    EXPECT_EQ(message_of(bad.inputs, bad.node), concat(bad.message, " (block.fc, train.py:41)"));
}

std::string shape_of(std::string_view inputs, Op op, Attrs attrs) {
  Graph graph = parse(concat("graph @g(", inputs, ") {\n  return\n}"));
  std::vector<ValueId> operands;
  for (const GraphInput& input : graph.inputs()) operands.push_back(input.value);
  return to_string(graph.type(Builder(graph).op(op, operands, std::move(attrs))));
}

TEST(Inference, KeepsSizesSymbolic) {
  const Attrs conv{{"strides", dims({2, 2})}, {"pads", dims({1, 1, 1, 1})}, {"dilations", dims({1, 1})}, {"group", 1}};
  EXPECT_EQ(shape_of("%x: f32[n, 3, 2*h, 9] input, %w: f32[8, 3, 3, 3] input", Op::kConv, conv), "f32[n, 8, h, 5]");
  EXPECT_EQ(shape_of("%a: f32[n, 1, s, k] input, %b: f32[h, k, t] input", Op::kMatMul, {}), "f32[n, h, s, t]");
  EXPECT_EQ(shape_of("%a: f32[n, s] input, %b: f32[n, 2*s] input", Op::kConcat, {{"axis", 1}}), "f32[n, 3*s]");
  EXPECT_EQ(shape_of("%x: f32[n, s] input", Op::kReshape, {{"shape", Shape{Dim::symbol("n") * Dim::symbol("s")}}}),
            "f32[n*s]");
  EXPECT_EQ(shape_of("%x: f32[5, 4] input, %i: i64[n, s] input", Op::kGather, {{"axis", 0}}), "f32[n, s, 4]");
  EXPECT_EQ(shape_of("%x: bool[n, 64] input", Op::kPackBits, {{"bits", 1}, {"low", 0}}), "u8[8*n]");
  EXPECT_EQ(shape_of("%x: bool[n, 3] input", Op::kPackBits, {{"bits", 1}, {"low", 0}}), "u8[(3*n + 7)//8]");
  EXPECT_EQ(shape_of("%x: i64[n, 3] input", Op::kPackBits, {{"bits", 16}, {"low", -1}}), "u8[6*n]");
}

// Sizes with a quotient have many texts: they are believed unless they can never be equal.
TEST(Inference, BelievesQuotients) {
  const Dim s = Dim::symbol("s"), half = floordiv(s, 2);
  const DimRanges ranges{{"s", {2, 100}}};
  EXPECT_TRUE(dims_agree(half * 2, s, ranges));
  EXPECT_FALSE(dims_agree(half + 60, half, ranges));
  EXPECT_FALSE(dims_agree(half, Dim(51), ranges));
  EXPECT_FALSE(dims_agree(s, Dim::symbol("t"), ranges));
  EXPECT_FALSE(dims_agree(s, s + 1, ranges));
}

}  // namespace
}  // namespace lowtide
