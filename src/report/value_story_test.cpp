// What is told of values of each fate, and of a name that no value has.
#include "report/value_story.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "ir/parse.h"
#include "memory/optimizer.h"

namespace lowtide {
namespace {

constexpr std::string_view kValueStoryStep = R"(
graph @net(%x: f32[b, 32] input, %w: f32[b, 32] param) where b in [1, 64] {
  %h: f32[b, 32] = Mul %x, %w  // scale  model.py:3
  %a: f32[b, 32] = Exp %h  // act  model.py:4
  %s: f32[b, 32] = Swish %a  // act  model.py:5
  %t: f32[b, 32] = Tanh %s  // act  model.py:6
  %c: f32[b, 32] = mylib::gate.default(operands=["x"]) %t  // act  model.py:7
  %y: f32[b, 32] = Mul %c, %t  // model.py:8
  %m: bool[b, 32] = Greater %t, %x  // model.py:9
  %dy: f32[b, 32] = YieldOp(grads=[0]) %y
  %dc: f32[b, 32] = Mul %dy, %c  // gradient of: model.py:8
  %dt: f32[b, 32] = Mul %dc, %s  // gradient of: act  model.py:6
  %da: f32[b, 32] = Mul %dt, %a  // gradient of: act  model.py:4
  %dm: f32[b, 32] = Where %m, %da, %dy  // gradient of: model.py:9
  %dw: f32[b, 32] = Mul %dm, %y  // gradient of: scale  model.py:3
  return %dw gradient %w
}
)";

class ValueStory : public testing::Test {
 protected:
  std::string of(std::string_view name) { return value_story(optimizer_.context(), Prices(), {{"b", 2}}, name); }
  void expect(std::string_view name, std::string_view part) {
    EXPECT_NE(of(name).find(part), std::string::npos) << of(name);
  }

  const Graph graph_ = parse(kValueStoryStep);
  const PlanResult plan_ = plan(graph_);
  const MemoryOptimizer optimizer_{graph_, plan_, {}};
};

TEST_F(ValueStory, TellsTheFateOfEachValue) {
  expect("x", "\"fate\": \"input\"");
  expect("w", "\"fate\": \"input\"");
  expect("h", "\"fate\": \"freed\"");
  expect("a", "\"fate\": \"stash\"");
  expect("s", "\"fate\": \"rebuilt\"");
  expect("c", "\"fate\": \"blocked\"");
  expect("c", "mylib::gate.default runs again only where");
  expect("y", "\"fate\": \"output\"");
  expect("dt", "\"fate\": \"backward\"");
}

TEST_F(ValueStory, TellsWhoMakesAndWhoNeedsIt) {
  expect("%a", "\"value\": \"a\", \"node\": \"Exp (act, model.py:4)\", \"module\": \"act\", \"line\": \"model.py:4\"");
  expect("a", "\"bytes\": 256");
  expect("a", "\"from\": [\"h\"], \"needed_by\": [\"Mul, gradient of: (act, model.py:4)\"]");
}

TEST_F(ValueStory, TellsInHowManyBytesAValueCanWait) {
  expect("m", "\"bytes\": 64");
  expect("m", "\"packed_bytes\": 8");
  expect("a", "\"packed_bytes\": 0, \"packing_ms\": 0");
}

TEST_F(ValueStory, NamesWhatIsNearestToANameThatNoValueHas) {
  try {
    of("dtt");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_EQ(std::string_view(error.what()), "no value of the step is called %dtt; the nearest are %dt, %da, %dc");
  }
}

}  // namespace
}  // namespace lowtide
