// Sizes that steps write, and numbers among the inputs, from programs in text form.
#include <gtest/gtest.h>

#include "runtime/control_programs.h"

namespace lowtide {
namespace {

struct Labelled {
  Labelled(int64_t rows, int64_t valid) : n(rows), m(valid), x(waves(static_cast<size_t>(rows) * 8)), w(waves(8)) {
    labels.resize(static_cast<size_t>(rows), -100);
    for (int64_t i = 0; i < valid; ++i) labels[static_cast<size_t>(rows - 1 - i)] = i;
  }
  std::vector<TensorRef> inputs() {
    return {row_major(x, DType::kF32, {n, 8}), row_major(labels, DType::kI64, {n}), row_major(w, DType::kF32, {8})};
  }
  std::vector<float> expected_picked() const {
    std::vector<float> result(x.begin(), x.begin() + m * 8);
    for (float& value : result) value = -std::max(value, 0.0f);
    return result;
  }
  std::vector<float> expected_gradient(const std::vector<float>& dy) const {
    std::vector<float> result(8);
    for (size_t c = 0; c < 8; ++c) {
      double sum = 0;
      for (int64_t r = 0; r < m; ++r) sum += std::max(x[static_cast<size_t>(r) * 8 + c], 0.0f);
      result[c] = static_cast<float>(sum) * dy[c];
    }
    return result;
  }
  int64_t n, m;
  std::vector<float> x, w;
  std::vector<int64_t> labels;
};

TEST(StepSymbol, StepsRunWithTheSizeThatWasFound) {
  const Program program = written(kCount);
  EXPECT_EQ(print(parse_program(print(program))), print(program));
  for (const bool guard : {false, true}) {
    Executor executor(program, {.guard = guard});
    std::vector<float> dy = waves(8, 3);
    const TensorRef incoming = row_major(dy, DType::kF32, {8});
    auto expect_gradient = [&](RunState& state, const Labelled& batch) {
      const std::vector<float> found = floats(executor.backward(state, {&incoming, 1}, {}).tensors().at(0));
      for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(found[i], batch.expected_gradient(dy)[i], 1e-5) << batch.m;
    };
    // Pending forwards with other counts share one binding.
    Labelled few(50, 3), many(50, 41), all(50, 50);
    std::shared_ptr<RunState> states[3];
    EXPECT_EQ(floats(executor.forward(few.inputs(), 0, &states[0])[0]), few.expected_picked());
    EXPECT_EQ(floats(executor.forward(many.inputs(), 0, &states[1])[0]), many.expected_picked());
    const std::vector<OwnedTensor> picked = executor.forward(all.inputs(), 0, &states[2]);
    EXPECT_EQ(picked[0].ref.sizes[0], 50);
    expect_gradient(*states[1], many);
    expect_gradient(*states[0], few);
    expect_gradient(*states[2], all);
    // Planned for the most: every forward has the same peak.
    const std::vector<int64_t> sizes = {50};
    EXPECT_GE(executor.memory(sizes).arena_bytes, 50 * 32);
  }
}

TEST(StepSymbol, ASizeOutsideOfItsRangeStopsTheStep) {
  Executor executor(written(kCount), {});
  Labelled none(20, 0);
  try {
    executor.forward(none.inputs(), 0, nullptr);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kRuntime);
    EXPECT_NE(std::string(error.what()).find("the count: it found a size outside"), std::string::npos) << error.what();
  }
}

TEST(StepSymbol, IsKnownAfterItsStepOnly) {
  expect_refused(replaced(kCount, "step_symbol \"m\" 2 3", "step_symbol \"m\" 4 3"), "size m is no i64");
  expect_refused(replaced(kCount, "step_symbol \"m\" 2 3", "step_symbol \"m\" 2 2"), "size m is no i64");
  expect_refused(replaced(kCount, "operand 2 i64 0 [3] [0]", "operand 2 i64 0 [5] [0]"), "not known at step 0");
  expect_refused(replaced(kCount, "input \"w\" f32 [2]", "input \"w\" f32 [5]"), "w depends on a size");
}

TEST(NumberSymbol, IsReadFromTheInput) {
  Executor executor(written(kNumber), {});
  std::vector<float> x = waves(20 * 8);
  std::vector<int64_t> k = {7};
  const std::vector<TensorRef> inputs = {row_major(x, DType::kF32, {20, 8}), row_major(k, DType::kI64, {})};
  EXPECT_EQ(executor.forward(inputs, 0, nullptr)[0].ref.sizes[0], 7);
  k = {20};
  const std::vector<float> all = floats(executor.forward(inputs, 0, nullptr)[0]);
  EXPECT_EQ(all.size(), 160u);
  EXPECT_EQ(all[159], -x[159]);
  k = {21};  // past x
  EXPECT_THROW(executor.forward(inputs, 0, nullptr), Error);
  k = {-1};
  EXPECT_THROW(executor.forward(inputs, 0, nullptr), Error);
  expect_refused(replaced(kNumber, "symbol \"k\" 1 number", "symbol \"k\" 0 number"), "which is no i64");
}

}  // namespace
}  // namespace lowtide
