// Loops over blocks of rows, from a program in text form.
#include <gtest/gtest.h>

#include "base/test_allocations.h"
#include "runtime/control_programs.h"

namespace lowtide {
namespace {

// Counts what the steps of a region allocate.
StepHooks counting(int64_t& count) {
  StepHooks hooks;
  hooks.begin = [&](const RunView&) { count = -allocations; };
  hooks.end = [&](const RunView&) { count += allocations; };
  return hooks;
}

// The same without the loop.
constexpr char kWhole[] = R"(symbol "n" 0 dim 0 0 1000
expression [0 0]
expression [0 1]
expression [0 8]
expression [1 0]
expression [1 0 0 32 4]
expression [0 32]
input "x" f32 [3 2] [2 1] 0 0
input "w" f32 [2] [1] 0 0
buffer "x" caller 4 0 0 0 0
buffer "w" caller 5 0 0 1 0
buffer "y" output 4 0 0 0 0
buffer "s" output 5 0 0 0 0
buffer "t" arena 4 0 1 0 0
operand 0 f32 0 [3 2] [2 1]
operand 1 f32 0 [2] [1]
operand 4 f32 0 [3 2] [2 1]
operand 2 f32 0 [3 2] [2 1]
operand 3 f32 0 [2] [1]
region "forward" []
step kernel "reference.Mul" [0 1] [2] -1 "" 0 "Mul"
step kernel "reference.Relu" [2] [3] -1 "" 0 "Relu"
step kernel "cpu.ReduceSum" [3] [4] -1 "" 0 "ReduceSum"
attr "axes" es [0]
attr "keepdims" b false
output "y" 3 0
output "s" 4 0
contexts 0
constants ""
pack_order []
)";

TEST(Loop, BlocksOfRowsGiveTheBitsOfTheWhole) {
  const Program looped = written(kLoop);
  EXPECT_EQ(print(parse_program(print(looped))), print(looped));
  expect_tight_lifetimes(looped);
  int64_t allocated = -1;
  Executor plain(looped, {.hooks = {counting(allocated)}}), guarded(looped, {.guard = true}),
      whole(written(kWhole), {});
  std::vector<float> w = waves(8, 2);
  for (const int64_t rows : {31, 32, 33, 100, 1000, 96, 1}) {
    std::vector<float> x = waves(static_cast<size_t>(rows) * 8);
    const std::vector<TensorRef> inputs = {row_major(x, DType::kF32, {rows, 8}), row_major(w, DType::kF32, {8})};
    const std::vector<OwnedTensor> expected = whole.forward(inputs, 0, nullptr);
    for (Executor* executor : {&plain, &guarded}) {
      const std::vector<OwnedTensor> found = executor->forward(inputs, 0, nullptr);
      EXPECT_EQ(floats(found[0]), floats(expected[0])) << rows;
      EXPECT_EQ(floats(found[1]), floats(expected[1])) << rows;
    }
    EXPECT_EQ(allocated, 0) << rows;
  }
  // One block of t in place of the whole.
  const std::vector<int64_t> sizes = {1000};
  EXPECT_LE(plain.memory(sizes).arena_bytes * 10, whole.memory(sizes).arena_bytes);
}

TEST(Loop, OfNoRowsRunsNoStep) {
  Executor executor(written(kLoop), {.guard = true});
  std::vector<float> x, w = waves(8);
  const std::vector<TensorRef> inputs = {row_major(x, DType::kF32, {0, 8}), row_major(w, DType::kF32, {8})};
  EXPECT_EQ(floats(executor.forward(inputs, 0, nullptr)[1]), std::vector<float>(8, 0.0f));
}

TEST(Loop, ChecksWhereItStandsAndWhatItTouches) {
  expect_refused(replaced(kLoop, "loop 2 6", "loop 2 9"), "loop 0 has the steps 2 to 9");
  expect_refused(replaced(kLoop, "loop 2 6", "loop 3 6"), "the steps of loop 0 do not follow its own");
  // Made in one block, read in the next.
  expect_refused(replaced(kLoop, "arena 7 2 3", "arena 7 3 3"), "touches t");
  expect_refused(replaced(kLoop, "arena 8 4 5", "arena 8 1 4"), "touches part");
  expect_refused(replaced(kLoop, "operand 2 f32 0 [2]", "operand 2 f32 5 [2]"), "a size that is not known at step 0");
  expect_refused(replaced(kLoop, "output \"y\" 7", "output \"y\" 5"), "a size that is not known at step 6");
  const Program odd = written(replaced(kLoop, "loop 2 6 3 32", "loop 2 6 3 48"));
  Executor executor(odd, {});
  EXPECT_THROW(executor.memory(std::vector<int64_t>{100}), Error);  // no multiple of the canonical block
}

// Only a run can tell: the first row times 16 leaves x in the last blocks.
TEST(Loop, OperandsThatLeaveTheirBufferAreCaughtInTheirBlock) {
  Executor executor(written(replaced(kLoop, "[1 1 0 8 4]", "[1 1 0 16 4]")), {});
  std::vector<float> x = waves(100 * 8), w = waves(8);
  const std::vector<TensorRef> inputs = {row_major(x, DType::kF32, {100, 8}), row_major(w, DType::kF32, {8})};
  try {
    executor.forward(inputs, 0, nullptr);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("rows: an operand leaves its buffer"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace lowtide
