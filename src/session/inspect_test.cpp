// Inspect nodes from the graph to the caller: what is seen, when, and that nothing else changes.

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "base/check.h"
#include "ir/parse.h"
#include "program/program.h"
#include "session/dense_floats.h"
#include "session/session.h"

namespace lowtide {
namespace {

// %s is inspected twice, %t leads to the second output alone.
constexpr char kModel[] = R"(
graph @net(%x: f32[batch, 4] input, %w: f32[4] param) where batch in [1, 64] {
  %h: f32[batch, 4] = Mul %x, %w
  INSPECT() = Inspect(name="h_forward", record=0) %h
  %s: f32[batch, 4] = Tanh %h
  INSPECT() = Inspect(name="s_forward", record=1) %s
  INSPECT() = Inspect(name="again_forward", record=2) %s
  %loss: f32[] = ReduceMean(axes=[0, 1], keepdims=false) %s
  %t: f32[batch, 4] = Neg %h
  INSPECT() = Inspect(name="t_forward", record=3) %t
  return %loss output, %t output
}
)";

Graph model(bool inspected) {
  std::string text = kModel;
  const std::string mark = "INSPECT";
  for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark))
    text.replace(at, mark.size(), inspected ? "" : "// ");
  return parse(text);
}

struct Caller {
  explicit Caller(Session& session) : session(session) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
  }
  std::vector<TensorRef> inputs() { return {dense(x.data(), {3, 4}), dense(w.data(), {4})}; }

  std::vector<OwnedTensor> forward() { return session.forward(inputs(), 1, &state); }
  // The gradient of the weight; only the loss has an incoming gradient.
  std::vector<float> backward() {
    std::vector<TensorRef> saved;
    for (int input : session.saved_inputs()) saved.push_back(inputs()[static_cast<size_t>(input)]);
    const std::vector<TensorRef> incoming = {dense(&one, {}), TensorRef{}};
    const std::vector<OwnedTensor> gradients = session.backward(*state, incoming, saved).tensors();
    const float* values = gradients.at(0).ref.as<float>();
    return {values, values + 4};
  }

  Session& session;
  std::vector<float> x = std::vector<float>(12), w = {1, 2, 3, 4};
  float one = 1;
  std::shared_ptr<RunState> state;
};

TEST(Inspect, SeesValuesAndTheirGradientsOnceInTheirHalves) {
  SessionOptions options;
  options.guard = true;
  Session session(model(true), std::move(options));
  Caller caller(session);
  caller.forward();
  std::vector<Inspected> found = session.take_inspected();
  ASSERT_EQ(found.size(), 4u);
  EXPECT_TRUE(session.take_inspected().empty());
  std::set<int64_t> records;
  for (const Inspected& each : found) records.insert(each.record);
  EXPECT_EQ(records, (std::set<int64_t>{0, 1, 2, 3}));
  EXPECT_FLOAT_EQ(static_cast<float>(found[0].statistics.sample[1]), caller.x[1] * 2);
  EXPECT_EQ(found[0].statistics.sizes[0], 3);

  caller.backward();
  found = session.take_inspected();
  // %t has no gradient in this step, and so no statistics of it.
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].record, 1);
  EXPECT_EQ(found[1].record, 2);
  EXPECT_FLOAT_EQ(static_cast<float>(found[0].statistics.max), 1.0f / 12);
  EXPECT_EQ(found[2].record, 0);
}

TEST(Inspect, ChangesNoBitAndIsInThePeak) {
  Session plain(model(false), {}), inspected(model(true), {});
  Caller first(plain), second(inspected);
  const float loss = *first.forward()[0].ref.as<float>();
  EXPECT_EQ(*second.forward()[0].ref.as<float>(), loss);
  EXPECT_EQ(second.backward(), first.backward());
  const std::vector<int64_t> sizes = {3};
  EXPECT_GE(inspected.memory(sizes).peak_bytes,
            plain.memory(sizes).peak_bytes + static_cast<int64_t>(8 * sizeof(Inspected)));
}

TEST(Inspect, OfTheSameValueIsOneStep) {
  const Session session(model(true), {});
  int steps = 0;
  for (const ProgramStep& step : session.program().steps) steps += step.kind == StepKind::kInspect;
  EXPECT_EQ(steps, 6);  // of 3 values and of 3 gradients, though %s and its gradient have two records each
}

TEST(Inspect, ADamagedStepIsRefused) {
  Program program = Session(model(true), {}).program();
  EXPECT_EQ(print(parse_program(print(program))), print(program));
  for (ProgramStep& step : program.steps)
    if (step.kind == StepKind::kInspect) step.attrs.erase("records");
  EXPECT_THROW(check(program), Error);
}

}  // namespace
}  // namespace lowtide
