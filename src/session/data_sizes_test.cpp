// Sizes that nodes of a graph make: planned for the most that they may be, run with what they are.
#include <gtest/gtest.h>

#include "emit/plan.h"
#include "grad/gradient.h"
#include "ir/parse.h"
#include "ir/verify.h"
#include "passes/optimize.h"
#include "runtime/written_program.h"
#include "schedule/order.h"

namespace lowtide {
namespace {

// The rows of x * w whose first element of x is above 0.
constexpr char kChosen[] = R"(
graph @net(%x: f32[n, 2] input, %w: f32[2] param) where n in [0, 100] {
  %y: f32[n, 2] = Mul %x, %w
  %first: f32[n, 1] = Slice(axis=1, end=1, start=0, step=1) %x
  %column: f32[n] = Squeeze(axes=[1]) %first
  %zero: f32[] = Constant(dtype=f32, value=0.0)
  %m: bool[n] = Greater %column, %zero
  %count: i64[] = CountTrue %m
  %size: i64[] = DataSize(high=n, low=0, symbol="k") %count
  %p: f32[k, 2] = Compress(size=k) %y, %m
  return %p output
}
)";

struct Rows {
  // Every row up to `chosen` is chosen, but in reverse order of the rows.
  Rows(int64_t count, int64_t chosen) : x(static_cast<size_t>(count) * 2), k(chosen) {
    for (int64_t i = 0; i < count; ++i) {
      x[static_cast<size_t>(2 * i)] = count - 1 - i < chosen ? 1.0f + static_cast<float>(i) : -1.0f;
      x[static_cast<size_t>(2 * i) + 1] = 10.0f + static_cast<float>(i);
    }
  }
  std::vector<TensorRef> inputs() {
    return {row_major(x, DType::kF32, {static_cast<int64_t>(x.size()) / 2, 2}), row_major(w, DType::kF32, {2})};
  }
  std::vector<float> expected() const {
    std::vector<float> rows;
    for (size_t i = 0; i < x.size(); i += 2)
      if (x[i] > 0) rows.insert(rows.end(), {x[i] * w[0], x[i + 1] * w[1]});
    return rows;
  }
  std::vector<float> expected_gradient(const std::vector<float>& dy) const {
    std::vector<float> dw(2);
    for (size_t i = 0, row = 0; i < x.size(); i += 2) {
      if (x[i] <= 0) continue;
      dw[0] += x[i] * dy[row++];
      dw[1] += x[i + 1] * dy[row++];
    }
    return dw;
  }
  std::vector<float> x;
  std::vector<float> w = {2, 3};
  int64_t k;
};

Program planned() {
  Graph graph = parse(kChosen);
  verify(graph);
  optimize_forward(graph, {});
  Graph training = build_gradient(graph);
  optimize_training(training, {});
  verify(training);
  return plan(training, {}).program;
}

TEST(DataSizes, PendingForwardsHaveTheirOwn) {
  for (const bool guard : {false, true}) {
    Executor executor(planned(), {.guard = guard});
    std::vector<float> dy(200);  // where all gradients come in
    for (size_t i = 0; i < dy.size(); ++i) dy[i] = 1.0f + static_cast<float>(i % 7);
    auto expect_gradient = [&](RunState& state, Rows& rows) {
      const TensorRef incoming = row_major(dy, DType::kF32, {rows.k, 2});
      std::vector<TensorRef> saved, inputs = rows.inputs();
      for (size_t i = 0; i < inputs.size(); ++i)
        if (executor.program().inputs[i].saved) saved.push_back(inputs[i]);
      const Gradients gradients = executor.backward(state, {&incoming, 1}, saved);
      EXPECT_EQ(floats(gradients.tensors().at(0)), rows.expected_gradient(dy)) << rows.k;
    };
    Rows none(20, 0), few(20, 3), all(20, 20), other(7, 4);
    std::shared_ptr<RunState> states[4];
    Rows* rows[] = {&none, &few, &all, &other};
    for (int i = 0; i < 4; ++i) {
      const std::vector<OwnedTensor> outputs = executor.forward(rows[i]->inputs(), 0, &states[i]);
      EXPECT_EQ(outputs[0].ref.sizes[0], rows[i]->k);
      EXPECT_EQ(floats(outputs[0]), rows[i]->expected());
    }
    for (int i : {2, 0, 3, 1}) expect_gradient(*states[i], *rows[i]);
    // Again: what a gradient of the same address meets is not what was bound for the last one.
    for (int i : {1, 0}) {
      executor.forward(rows[i]->inputs(), 0, &states[i]);
      expect_gradient(*states[i], *rows[i]);
    }
  }
}

TEST(DataSizes, AGradientHasTheSizeOfItsForward) {
  Executor executor(planned(), {});
  Rows few(20, 3);
  std::shared_ptr<RunState> state;
  executor.forward(few.inputs(), 0, &state);
  std::vector<float> dy(8);
  const TensorRef incoming = row_major(dy, DType::kF32, {4, 2});
  try {
    executor.begin_backward(*state, {&incoming, 1}, few.inputs());
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("[3, 2]"), std::string::npos) << error.what();
  }
}

void expect_broken(const std::string& graph, const std::string& reason) {
  try {
    verify(parse(graph));
    FAIL() << "passed: " << reason;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
  }
}

TEST(DataSizes, AreNamedBehindTheNodeThatMakesThem) {
  expect_broken(replaced(kChosen, "%zero: f32[] = Constant(dtype=f32, value=0.0)",
                         "%early: f32[k] = ConstantOfShape(dtype=f32, shape=[k], value=0.0)\n"
                         "  %zero: f32[] = Constant(dtype=f32, value=0.0)"),
                "names the size k before a node makes it");
  expect_broken(
      replaced(kChosen, "  %p: f32", "  %again: i64[] = DataSize(high=n, low=0, symbol=\"k\") %count\n  %p: f32"),
      "two nodes make the size k");
}

TEST(DataSizes, NodesThatNameOneStayBehindIt) {
  const Graph graph = parse(kChosen);
  const std::vector<DimValues> samples = sample_sizes(graph);
  ASSERT_FALSE(samples.empty());
  for (const DimValues& sample : samples) EXPECT_EQ(sample.at("k"), sample.at("n"));
  Graph ordered = parse(kChosen);
  schedule_order(ordered);
  verify(ordered);
}

}  // namespace
}  // namespace lowtide
