#include "passes/pass.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "passes/optimize.h"

namespace lowtide {
namespace {

Graph sample() {
  return parse("graph @g(%x: f32[n] input) {\n %a: f32[n] = Neg %x\n %b: f32[n] = Exp %x\n return %b output\n}");
}

bool idle(Graph&) { return false; }
bool rename_first(Graph& graph) {
  graph.rename(graph.node(graph.order()[0]).outputs[0], "renamed");
  return true;
}
bool rename_silently(Graph& graph) { return rename_first(graph), false; }
bool claim_only(Graph&) { return true; }
bool break_order(Graph& graph) {
  graph.edit(graph.order()[0]).inputs[0] = graph.node(graph.order()[1]).outputs[0];
  return true;
}

template <class Run>
std::string internal_error(Run&& run) {
  try {
    run();
  } catch (const InternalError& error) {
    return error.what();
  }
  return "";
}

TEST(Passes, RunInOrderAndSayWhatTheyDid) {
  const Pass passes[] = {{"one", idle}, {"two", rename_first}};
  Graph graph = sample();
  std::vector<std::string> dumped;
  PassOptions options;
  options.after_change = [&](std::string_view pass, const Graph&) { dumped.emplace_back(pass); };
  const std::vector<PassRun> runs = run_passes(graph, passes, options);
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_FALSE(runs[0].changed);
  EXPECT_TRUE(runs[1].changed);
  EXPECT_EQ(dumped, std::vector<std::string>{"two"});
  EXPECT_TRUE(graph.find_value("renamed"));
}

TEST(Passes, DisabledOnesAreLeftOutAndOthersStopTheRun) {
  PassOptions options;
  options.disabled = {"dce"};
  Graph graph = sample();
  optimize_forward(graph, options);
  EXPECT_TRUE(graph.find_value("a"));
  options = {};
  options.stop_after = "cse";
  graph = sample();
  optimize_forward(graph, options);
  EXPECT_TRUE(graph.find_value("a"));
  graph = sample();
  optimize_forward(graph);
  EXPECT_FALSE(graph.find_value("a"));
}

TEST(Passes, UnknownNamesAreTheUsersMistake) {
  PassOptions options;
  options.disabled = {"dze"};
  Graph graph = sample();
  try {
    optimize_forward(graph, options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string_view(error.what()).find("no pass is called 'dze'; there are fold, cse, dce"),
              std::string_view::npos);
  }
}

TEST(Passes, LiesAndBrokenGraphsNameThePass) {
  PassOptions options;
  options.check_claims = true;
  Graph graph = sample();
  const Pass silent[] = {{"silent", rename_silently}}, loud[] = {{"loud", claim_only}},
             breaking[] = {{"breaking", break_order}};
  EXPECT_NE(internal_error([&] { run_passes(graph, silent, options); }).find("silent claims no change"),
            std::string::npos);
  EXPECT_NE(internal_error([&] { run_passes(graph, loud, options); }).find("loud claims a change"), std::string::npos);
  EXPECT_NE(internal_error([&] { run_passes(graph, breaking); }).find("after the pass breaking: graph @g breaks I1"),
            std::string::npos);
}

}  // namespace
}  // namespace lowtide
