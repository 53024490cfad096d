#include "grad/needs.h"

#include <gtest/gtest.h>

#include "ir/parse.h"

namespace lowtide {
namespace {

// The names of the marked values, in the order of the graph.
std::string marked(const Graph& graph, const std::vector<bool>& marks) {
  std::string names;
  for (size_t i = 0; i < marks.size(); ++i)
    if (marks[i]) names += (names.empty() ? "" : " ") + graph.value({static_cast<int32_t>(i)}).name;
  return names;
}

const char* const kGraph = R"(graph @g(%x: f32[n] input, %w: f32[n] param, %u: f32[n] param, %f: f32[n] param frozen) {
  %a: f32[n] = Mul %x, %f
  %b: f32[n] = Mul %a, %w
  %c: bool[n] = Greater %b, %x
  %d: f32[n] = Detach %b
  %e: f32[n] = Where %c, %d, %x
  %s: f32[n], %i: i64[n] = Sort(axis=0, descending=false) %b
  %g: f32[n] = Cast(to=f32) %i
  %h: f32[n] = Exp %u
  return %e output, %s output
})";

TEST(NeedsGradient, FollowsFloatingPathsFromInputsThatRequireOne) {
  const Graph graph = parse(kGraph);
  EXPECT_EQ(marked(graph, needs_gradient(graph)), "w u b s h");
}

TEST(NeedsGradient, IsReachedOnlyFromOutputsThatSendOne) {
  const Graph graph = parse(kGraph);
  const std::vector<bool> needs = needs_gradient(graph);
  EXPECT_EQ(marked(graph, reached_by_gradient(graph, needs, {graph.find_value("s")})), "w b s");
  EXPECT_EQ(marked(graph, reached_by_gradient(graph, needs, {graph.find_value("e")})), "");
}

}  // namespace
}  // namespace lowtide
