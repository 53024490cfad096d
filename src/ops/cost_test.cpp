#include <gtest/gtest.h>

#include "ir/parse.h"
#include "ops/rule.h"

namespace lowtide {
namespace {

struct CostCase {
  const char* inputs;
  const char* node;
  const char* flops;
  const char* bytes;
  const char* drawn = "0";
};

constexpr CostCase kCostCases[] = {
    {"%a: f32[n, 4] input, %b: f32[4, 5] input", "%y: f32[n, 5] = MatMul %a, %b", "40*n", "36*n + 80"},
    {"%a: f32[4, n] input, %b: f32[4, 5] input",
     "%y: f32[n, 5] = FusedMatMul(alpha=1.0, transA=true, transB=false) %a, %b", "40*n", "36*n + 80"},
    {"%a: bf16[n, 4] input", "%y: bf16[n, 4] = Exp %a", "4*n", "16*n"},
    {"%a: f32[n, 4] input", "%y: f32[4, n] = Transpose(perm=[1, 0]) %a", "0", "0"},
    {"%a: f32[n, 4] input", "%y: f32[n] = ReduceSum(axes=[1], keepdims=false) %a", "4*n", "20*n"},
    {"%a: f32[1, 2, 3, 4] input, %b: f32[1, 2, 5, 4] input",
     "%y: f32[1, 2, 3, 4], %l: f32[1, 2, 3] = Attention(dropout=0.0, is_causal=false, scale=1.0, stream=0) %a, %b, %b",
     "480", "536"},
    {"%a: f32[1, 3, 8, 8] input, %b: f32[4, 3, 3, 3] input",
     "%y: f32[1, 4, 6, 6] = Conv(dilations=[1, 1], group=1, pads=[0, 0, 0, 0], strides=[1, 1]) %a, %b", "7776", "1776"},
    {"%a: f32[2, 3, n, 4] input",
     "%y: f32[2, 3, n, 4], %l: f32[2, 3, n] = Attention(dropout=0.1, is_causal=false, scale=1.0, stream=0) %a, %a, %a",
     "96*n**2", "408*n", "6*n**2"},
    {"%a: f32[1000, 4] input, %i: i64[n] input", "%y: f32[n, 4] = Gather(axis=0) %a, %i", "0", "40*n"},
    {"%a: f32[n, 4] input, %i: i64[n] input", "%y: f32[1000, 4] = GatherGrad(axis=0, shape=[1000, 4]) %a, %i", "0",
     "56*n + 16000"},
    {"%a: f32[n, 4] input, %i: i64[n] input, %t: f32[1000, 4] input",
     "%y: f32[1000, 4] = GatherGrad(axis=0, shape=[1000, 4]) %a, %i, %t", "0", "56*n"},
    {"%a: f32[n, 4] input", "%y: f32[n, 4] = Dropout(ratio=0.5, stream=0) %a", "4*n", "32*n", "4*n"},
    {"%a: f32[n, 3, 8, 8] input",
     "%y: f32[n, 3, 4, 4] = AveragePool(ceil_mode=false, count_include_pad=true, "
     "kernel_shape=[2, 2], pads=[0, 0, 0, 0], strides=[2, 2]) %a",
     "192*n", "960*n"},
    {"%a: i64[n, 4] input", "%y: u8[4*n] = PackBits(bits=8, low=0) %a", "0", "36*n"},
};

TEST(Cost, CountsFlopsAndBytes) {
  for (const CostCase& c : kCostCases) {
    SCOPED_TRACE(c.node);
    const Graph graph = parse(concat("graph @g(", c.inputs, ") {\n", c.node, "\n  return\n}"));
    const Cost found = cost(graph, graph.order().at(0));
    EXPECT_EQ(to_string(found.flops), c.flops);
    EXPECT_EQ(to_string(found.bytes), c.bytes);
    EXPECT_EQ(to_string(found.drawn), c.drawn);
  }
}

TEST(Cost, IsAtGivenSizesWhatTheSymbolicOneEvaluatesTo) {
  const DimValues dims = {{"n", 7}};
  for (const CostCase& c : kCostCases) {
    SCOPED_TRACE(c.node);
    const Graph graph = parse(concat("graph @g(", c.inputs, ") {\n", c.node, "\n  return\n}"));
    const CostAt found = cost_at(graph, graph.order().at(0), dims);
    EXPECT_EQ(found.flops, static_cast<double>(evaluate(parse_dim(c.flops), dims)));
    EXPECT_EQ(found.bytes, static_cast<double>(evaluate(parse_dim(c.bytes), dims)));
    EXPECT_EQ(found.drawn, static_cast<double>(evaluate(parse_dim(c.drawn), dims)));
  }
}

}  // namespace
}  // namespace lowtide
