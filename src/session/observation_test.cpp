// Observed sessions: every value is shown while it is there, under the names of what was captured; faults for tests.

#include "session/observation.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "base/check.h"
#include "ir/excerpt.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "session/dense_floats.h"
#include "session/session.h"

namespace lowtide {
namespace {

// %t is the first operand's bytes in another shape; the ReLU may run in place.
constexpr char kModel[] = R"(
graph @net(%x: f32[n, 4] input, %w: f32[4] param) where n in [1, 64] {
  %h: f32[n, 4] = aten::mul.Tensor(operands=["self", "other"]) %x, %w
  %t: f32[4, n] = aten::permute.default(dims=[1, 0], operands=["self"]) %h
  %r: f32[4, n] = aten::relu.default(operands=["self"]) %t
  %same: f32[4, n] = aten::dropout.default(operands=["input"], p=0.0, train=true) %r
  %loss: f32[] = aten::sum.default(operands=["self"]) %same
  return %loss output
}
)";

struct Step {
  explicit Step(SessionOptions options) : session(parse(kModel), std::move(options)) {}

  // Runs forward and backward on n = 2; `shown` gets each value's elements.
  std::vector<float> run() {
    if (observes)
      session.observe([this](const std::string& name, const TensorRef& tensor) {
        std::vector<float>& elements = shown[name];
        elements.clear();
        for (int64_t i = 0; i < tensor.numel(); ++i) {
          const int64_t last = tensor.rank > 1 ? tensor.sizes[1] : 1;
          elements.push_back(tensor.as<float>()[i / last * tensor.strides[0] + i % last * tensor.strides[1]]);
        }
      });
    std::shared_ptr<RunState> state;
    session.forward(inputs(), 1, &state);
    std::vector<TensorRef> saved;
    for (int input : session.saved_inputs()) saved.push_back(inputs()[static_cast<size_t>(input)]);
    const std::vector<TensorRef> incoming = {dense(&one, {})};
    const std::vector<OwnedTensor> gradients = session.backward(*state, incoming, saved).tensors();
    const float* values = gradients.at(0).ref.as<float>();
    return {values, values + 4};
  }
  std::vector<TensorRef> inputs() { return {dense(x.data(), {2, 4}), dense(w.data(), {4})}; }

  Session session;
  bool observes = true;
  std::map<std::string, std::vector<float>> shown;
  std::vector<float> x = {1, -1, 2, -2, 3, 3, -3, 4}, w = {1, 2, 3, 4};
  float one = 1;
};

SessionOptions observed() {
  SessionOptions options;
  options.observed = true;
  return options;
}

MappedValue find(const Session& session, const std::string& captured) {
  for (const MappedValue& each : session.observation().value_map)
    if (each.captured == captured) return each;
  return {};
}

TEST(Observation, ShowsValuesAndGradientsUnderTheirCapturedNames) {
  Step step(observed());
  step.run();
  EXPECT_EQ(step.shown.at(find(step.session, "h").value), (std::vector<float>{1, -2, 6, -8, 3, 6, -9, 16}));
  EXPECT_EQ(step.shown.at(find(step.session, "t").value), (std::vector<float>{1, 3, -2, 6, 6, -9, -8, 16}));
  const MappedValue r = find(step.session, "r");
  EXPECT_EQ(step.shown.at(r.value), (std::vector<float>{1, 3, 0, 6, 6, 0, 0, 16}));
  EXPECT_EQ(step.shown.at(find(step.session, "t").gradient), (std::vector<float>{1, 1, 0, 1, 1, 0, 0, 1}));
  // One value stands for both; its gradient is that of the first.
  EXPECT_EQ(find(step.session, "same").value, r.value);
  EXPECT_EQ(find(step.session, "same").gradient, "");
}

// A linear whose bias its GELU takes kept its name, and stood for the sum that it no longer was.
TEST(Observation, AValueThatBecameAnotherIsNotMapped) {
  const Session session(parse(R"(
graph @net(%x: f32[n, 4] input, %w: f32[3, 4] param, %b: f32[3] param) where n in [1, 64] {
  %y: f32[n, 3] = aten::linear.default(operands=["input", "weight", "bias"]) %x, %w, %b
  %g: f32[n, 3] = aten::gelu.default(approximate="none", operands=["self"]) %y
  %z: f32[n, 3] = aten::mul.Tensor(operands=["self", "other"]) %g, %b
  return %z output
}
)"),
                        observed());
  EXPECT_NE(session.observation().training.find_value("y"), ValueId{}) << "the product alone has the name";
  EXPECT_EQ(find(session, "y").value, "");
  EXPECT_EQ(find(session, "y").gradient, "");
  EXPECT_NE(find(session, "g").value, "");
}

TEST(Observation, ChangesNeitherGraphNorPlanNorBits) {
  Step step(observed()), other({});
  other.observes = false;
  EXPECT_EQ(step.session.training_text(), other.session.training_text());
  EXPECT_EQ(step.session.program().steps.size(), other.session.program().steps.size());
  EXPECT_EQ(step.run(), other.run());
  EXPECT_THROW(other.session.observation(), Error);
}

#ifdef LOWTIDE_TEST_FAULTS
TEST(Observation, AFaultScalesOneValueAndWhatComesOfIt) {
  Step healthy(observed());
  const std::vector<float> right = healthy.run();
  SessionOptions options = observed();
  options.fault_value = find(healthy.session, "h").value;
  options.fault_factor = 2;
  Step forward(options);
  forward.run();
  EXPECT_EQ(forward.shown.at(options.fault_value), (std::vector<float>{2, -4, 12, -16, 6, 12, -18, 32}));
  options.fault_value = find(healthy.session, "t").gradient;
  Step backward(options);
  const std::vector<float> doubled = backward.run();
  for (size_t i = 0; i < right.size(); ++i) EXPECT_EQ(doubled[i], 2 * right[i]);
  EXPECT_EQ(backward.shown.at(find(backward.session, "r").value), healthy.shown.at(find(healthy.session, "r").value));
}

TEST(Observation, AFaultThatNoStepMakesIsNamedWithThoseThereAre) {
  SessionOptions options;
  options.fault_value = "relus";
  try {
    Session session(parse(kModel), options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("called relus; there are "), std::string::npos) << error.what();
  }
}

#endif

TEST(Excerpt, HoldsWhatLiesBetweenWithConstantSizes) {
  const Graph graph = parse(R"(
graph @net(%x: f32[n, 4] input, %w: f32[4] param) where n in [1, 64] {
  %h: f32[n, 4] = Mul %x, %w
  %s: f32[n, 4] = Tanh %h
  %c: f32[] = Constant(dtype=f32, value=2.0)
  %m: f32[n, 4] = Mul %s, %c
  return %m output
}
)");
  const Graph part = excerpt(graph, {graph.find_value("s")}, {graph.find_value("m")}, {{"n", 3}});
  EXPECT_EQ(print(part), print(parse(R"(
graph @net(%s: f32[3, 4] input) {
  %c: f32[] = Constant(dtype=f32, value=2.0)
  %m: f32[3, 4] = Mul %s, %c
  return %m output
}
)")));
}

TEST(Excerpt, ANodeIsNotCutBetweenItsResults) {
  const Graph graph = parse(R"(
graph @net(%x: f32[2, 4] input, %w: f32[4] param, %b: f32[4] param) {
  %h: f32[2, 4] = Tanh %x
  %y: f32[2, 4], %mean: f32[2], %scale: f32[2] = LayerNormalization(axis=1, epsilon=1e-05) %h, %w, %b
  %d: f32[2, 4], _, _ = LayerNormalizationGrad(axis=1) %y, %h, %mean, %scale, %w
  return %d output
}
)");
  const Graph part = excerpt(graph, {graph.find_value("y"), graph.find_value("h")}, {graph.find_value("d")}, {});
  EXPECT_EQ(part.inputs().size(), 3u);
  EXPECT_EQ(part.order().size(), 2u);
  EXPECT_TRUE(part.value(part.find_value("y")).producer.valid());
}

}  // namespace
}  // namespace lowtide
