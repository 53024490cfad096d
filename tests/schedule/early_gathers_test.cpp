// Gathers that begin before they are needed.
#include "schedule/early_gathers.h"

#include <gtest/gtest.h>

#include "ir/parse.h"
#include "ir/print.h"
#include "ir/verify.h"

namespace lowtide {
namespace {

// What happens in which order, by the names of what the nodes make.
std::string made_in_order(const std::string& text) {
  Graph graph = parse(text);
  begin_gathers_early(graph);
  verify(graph);
  std::string names;
  for (NodeId id : graph.order())
    for (ValueId output : graph.node(id).outputs)
      if (output) names += graph.value(output).name + " ";
  return names;
}

TEST(EarlyGathers, EachBeginsBehindTheOneBefore) {
  EXPECT_EQ(
      made_in_order(
          R"(graph @g(%x: f32[4, 8] input, %a: f32[4, 8] param, %b: f32[4, 8] param, %c: f32[4, 8] param, %w: f32[999, 8] param) {
  %p: f32[8, 8] = AllGather(group=0, ranks=2) %a
  %h: f32[4, 8] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %x, %p
  %q: f32[8, 8] = AllGather(group=0, ranks=2) %b
  %i: f32[4, 8] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %h, %q
  %copy: f32[4, 8] = Neg %c
  %r: f32[8, 8] = AllGather(group=0, ranks=2) %copy
  %j: f32[4, 8] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %i, %r
  %large: f32[4, 999] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %j, %w
  %s: f32[4] = ReduceSum(axes=[1], keepdims=false) %large
  return %s output
}
)"),
      "p q h copy r i j large s ");
}

// Where most bytes are live anyway.
TEST(EarlyGathers, NoneRaisesThePeak) {
  EXPECT_EQ(made_in_order(R"(graph @g(%x: f32[4, 8] input, %a: f32[4, 8] param, %b: f32[4, 8] param) {
  %p: f32[8, 8] = AllGather(group=0, ranks=2) %a
  %h: f32[4, 8] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %x, %p
  %q: f32[8, 8] = AllGather(group=0, ranks=2) %b
  %i: f32[4, 8] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %h, %q
  return %i output
}
)"),
            "p h q i ");
}

}  // namespace
}  // namespace lowtide
