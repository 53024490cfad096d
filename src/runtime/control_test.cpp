// What the planner does not use yet, from programs in text form: loops over row blocks, calls that are begun and waited
// for, sizes that steps write, numbers among the inputs.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <new>
#include <random>
#include <thread>

#include "base/check.h"
#include "bind/binding.h"
#include "runtime/written_program.h"

// Inlined, the compiler would take malloc and operator delete for a pair that does not match.
static std::atomic<int64_t> allocations{0};
__attribute__((noinline)) void* operator new(std::size_t size) {
  ++allocations;
  if (void* bytes = std::malloc(size == 0 ? 1 : size)) return bytes;
  throw std::bad_alloc();
}
__attribute__((noinline)) void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size == 0 ? 1 : size);
}
__attribute__((noinline)) void operator delete(void* bytes) noexcept { std::free(bytes); }
__attribute__((noinline)) void operator delete(void* bytes, std::size_t) noexcept { std::free(bytes); }

namespace lowtide {
namespace {

// Counts what the steps of a region allocate.
StepHooks counting(int64_t& count) {
  StepHooks hooks;
  hooks.begin = [&](const RunView&) { count = -allocations; };
  hooks.end = [&](const RunView&) { count += allocations; };
  return hooks;
}

std::vector<float> waves(size_t count, float scale = 1) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = scale * std::sin(1 + static_cast<float>(i));
  return values;
}

void expect_refused(const std::string& lines, const std::string& reason) {
  try {
    written(lines);
    FAIL() << "passed: " << reason;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidProgram);
    EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
  }
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

// The program again with the lifetimes that its steps ask for.
void expect_tight_lifetimes(const Program& program) {
  Program again = program;
  set_lifetimes(again);
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const ProgramBuffer &found = again.buffers[i], &said = program.buffers[i];
    if (said.kind != BufferKind::kArena) continue;
    EXPECT_EQ(found.first, said.first) << said.name;
    EXPECT_EQ(found.last, said.last) << said.name;
  }
}

// ---- loops: y = relu(x * w), s = the sum of y's rows, in blocks of 32 rows. t and part are made again in each block.
//   Expressions: 0: 0, 1: 1, 2: 8, 3: n, 4: n*32, 5: first row * 8, 6: rows of the block, 7: its bytes, 8: 32
constexpr char kLoop[] = R"(symbol "n" 0 dim 0 0 1000
loop 2 6 3 32
devices ["host"]
expression [0 0]
expression [0 1]
expression [0 8]
expression [1 0]
expression [1 0 0 32 4]
expression [1 1 0 8 4]
expression [1 2]
expression [1 2 0 32 4]
expression [0 32]
input "x" f32 [3 2] [2 1] 0 0
input "w" f32 [2] [1] 0 0
buffer "x" caller 4 0 0 0 0
buffer "w" caller 8 0 0 1 0
buffer "zero" constant 8 0 0 0 0
buffer "y" output 4 0 0 0 0
buffer "s" output 8 0 0 0 0
buffer "t" arena 7 2 3 0 0
buffer "part" arena 8 4 5 0 0
operand 2 f32 0 [2] [1]
operand 4 f32 0 [2] [1]
operand 0 f32 5 [6 2] [2 1]
operand 1 f32 0 [2] [1]
operand 5 f32 0 [6 2] [2 1]
operand 3 f32 5 [6 2] [2 1]
operand 6 f32 0 [2] [1]
operand 3 f32 0 [3 2] [2 1]
region "forward" []
step kernel "reference.Copy" [0] [1] -1 "" 0 "zero"
step loop "" [] [] 0 "" 0 "rows"
step kernel "reference.Mul" [2 3] [4] -1 "" 0 "Mul"
step kernel "reference.Relu" [4] [5] -1 "" 0 "Relu"
step kernel "cpu.ReduceSum" [5] [6] -1 "" 0 "ReduceSum"
attr "axes" es [0]
attr "keepdims" b false
step kernel "reference.Add" [1 6] [1] -1 "" 0 "Add"
output "y" 7 0
output "s" 1 0
contexts 0
constants "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
pack_order []
)";

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

// ---- sizes that steps write: m, the count of labels that are not -100. Forward: p = relu of the first m rows of x.
// Backward: the gradient of w is the sum of p's rows, times dy.
//   Expressions: 0: 0, 1: 1, 2: 8, 3: n, 4: n*32, 5: m, 6: m*32, 7: n*8 bytes, 8: n bytes, 9: 32
constexpr char kCount[] = R"(symbol "n" 0 dim 0 1 1000
step_symbol "m" 2 3 1 3
expression [0 0]
expression [0 1]
expression [0 8]
expression [1 0]
expression [1 0 0 32 4]
expression [1 1]
expression [1 1 0 32 4]
expression [1 0 0 8 4]
expression [1 0]
expression [0 32]
input "x" f32 [3 2] [2 1] 0 0
input "labels" i64 [3] [1] 0 0
input "w" f32 [2] [1] 0 0
incoming "dy" f32 [2] [1] 0 1
of 0
buffer "x" caller 4 0 0 0 0
buffer "labels" caller 7 0 0 1 0
buffer "missing" constant 2 0 0 0 0
buffer "is_valid" arena 8 0 1 0 0
buffer "ones" arena 7 1 2 0 0
buffer "count" arena 2 2 2 0 0
buffer "p" arena 6 3 5 0 0
buffer "picked" output 6 0 0 0 0
buffer "dy" caller 9 0 0 -1 0
buffer "sum" arena 9 5 6 0 0
buffer "dw" gradient 9 6 7 0 0
operand 1 i64 0 [3] [1]
operand 2 i64 0 [3] [0]
operand 3 bool 0 [3] [1]
operand 5 i64 0 [] []
operand 4 i64 0 [3] [1]
operand 0 f32 0 [5 2] [2 1]
operand 6 f32 0 [5 2] [2 1]
operand 7 f32 0 [5 2] [2 1]
operand 9 f32 0 [2] [1]
operand 8 f32 0 [2] [1]
operand 10 f32 0 [2] [1]
region "forward" []
step kernel "reference.NotEqual" [0 1] [2] -1 "" 0 "NotEqual"
step kernel "reference.Cast" [2] [4] -1 "" 0 "Cast"
attr "to" t i64
step kernel "reference.ReduceSum" [4] [3] -1 "" 0 "the count"
attr "axes" es [0]
attr "keepdims" b false
step kernel "reference.Relu" [5] [6] -1 "" 0 "Relu"
step kernel "reference.Neg" [6] [7] -1 "" 0 "Neg"
region "backward" [0]
step kernel "reference.ReduceSum" [6] [8] -1 "" 0 "ReduceSum"
attr "axes" es [0]
attr "keepdims" b false
step kernel "reference.Mul" [8 9] [10] -1 "" 0 "Mul"
step emit "" [10] [] 0 "" 0 "gradient of w"
output "picked" 7 0
gradient 10 2
contexts 0
constants "\x9c\xff\xff\xff\xff\xff\xff\xff"
pack_order []
)";

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

// ---- a number among the inputs: y is the first k rows of x.
constexpr char kNumber[] = R"(symbol "n" 0 dim 0 1 1000
symbol "k" 1 number 0 1000
expression [0 0]
expression [0 1]
expression [0 8]
expression [1 0]
expression [1 0 0 32 4]
expression [1 1]
expression [1 1 0 32 4]
input "x" f32 [3 2] [2 1] 0 0
input "k" i64 [] [] 0 0
buffer "x" caller 4 0 0 0 0
buffer "y" output 6 0 0 0 0
operand 0 f32 0 [5 2] [2 1]
operand 1 f32 0 [5 2] [2 1]
region "forward" []
step kernel "reference.Neg" [0] [1] -1 "" 0 "Neg"
output "y" 1 0
contexts 0
constants ""
pack_order []
)";

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

// ---- begin and wait: t goes out while v is computed, and comes back as u; y = u + v.
constexpr char kPending[] = R"(symbol "n" 0 dim 0 1 1000
expression [0 0]
expression [0 1]
expression [1 0]
expression [1 0 0 4 4]
input "x" f32 [2] [1] 0 0
buffer "x" caller 3 0 0 0 0
buffer "t" arena 3 0 3 0 0
buffer "u" arena 3 1 4 0 0
buffer "v" arena 3 2 4 0 0
buffer "y" output 3 0 0 0 0
operand 0 f32 0 [2] [1]
operand 1 f32 0 [2] [1]
operand 2 f32 0 [2] [1]
operand 3 f32 0 [2] [1]
operand 4 f32 0 [2] [1]
region "forward" []
step kernel "reference.Relu" [0] [1] -1 "" 0 "Relu"
step begin "" [1] [2] -1 "copy_out" 0 "send"
step kernel "reference.Mul" [0 0] [3] -1 "" 0 "Mul"
step wait "" [] [] 1 "" 0 "receive"
step kernel "reference.Add" [2 3] [4] -1 "" 0 "Add"
output "y" 4 0
contexts 0
constants ""
pack_order []
)";

// Copies on a thread of its own, later.
struct Sender {
  std::atomic<int> begun{0}, ended{0};

  CallHandler handler() {
    CallHandler calls;
    calls.begin = [this](const CallRequest& request, PendingCall* pending) -> KernelStatus {
      EXPECT_EQ(*request.target, "copy_out");
      ++begun;
      const TensorRef from = request.inputs[0], to = request.outputs[0];
      auto thread = std::make_shared<std::thread>([this, from, to] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        std::copy_n(from.as<float>(), from.numel(), to.as<float>());
        ++ended;
      });
      *pending = [thread]() -> KernelStatus {
        thread->join();
        return nullptr;
      };
      return nullptr;
    };
    return calls;
  }
};

TEST(Wait, WhatWasBegunHasEnded) {
  const Program program = written(kPending);
  EXPECT_EQ(print(parse_program(print(program))), print(program));
  expect_tight_lifetimes(program);
  for (const bool guard : {false, true}) {
    Executor executor(program, {.guard = guard});
    Sender sender;
    executor.set_call_handler(sender.handler());
    std::vector<float> x = waves(100);
    const TensorRef input = row_major(x, DType::kF32, {100});
    const std::vector<float> y = floats(executor.forward({&input, 1}, 0, nullptr)[0]);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i], std::max(x[i], 0.0f) + x[i] * x[i]);
    EXPECT_EQ(sender.ended, 1);
  }
}

TEST(Wait, ACallMayEndAtOnce) {
  Executor executor(written(kPending), {});
  CallHandler calls;
  calls.begin = [](const CallRequest& request, PendingCall*) -> KernelStatus {
    std::copy_n(request.inputs[0].as<float>(), request.inputs[0].numel(), request.outputs[0].as<float>());
    return nullptr;
  };
  executor.set_call_handler(calls);
  std::vector<float> x = {1, -2, 3};
  const TensorRef input = row_major(x, DType::kF32, {3});
  EXPECT_EQ(floats(executor.forward({&input, 1}, 0, nullptr)[0]), (std::vector<float>{2, 4, 12}));
}

// A step that is stopped leaves nothing at work on memory that goes.
TEST(Wait, AnInterruptedStepWaitsFirst) {
  StepHooks stop;
  stop.after = [](const RunView&, int32_t step) { stop_flag() = step == 1; };
  Executor executor(written(kPending), {.hooks = {stop}});
  Sender sender;
  executor.set_call_handler(sender.handler());
  std::vector<float> x = waves(100);
  const TensorRef input = row_major(x, DType::kF32, {100});
  EXPECT_THROW(executor.forward({&input, 1}, 0, nullptr), Error);
  EXPECT_EQ(sender.begun, 1);
  EXPECT_EQ(sender.ended, 1);
}

TEST(Wait, NobodyTouchesWhatIsAtWork) {
  expect_refused(replaced(kPending, "\"t\" arena 3 0 3", "\"t\" arena 3 0 2"), "step 1 touches t until step 3");
  expect_refused(replaced(kPending, "[0 0] [3] -1 \"\" 0 \"Mul\"", "[0 2] [3] -1 \"\" 0 \"Mul\""),
                 "step 2 touches u, which step 1 is at work on until step 3");
  expect_refused(replaced(kPending, "[0 0] [3] -1 \"\" 0 \"Mul\"", "[0 0] [1] -1 \"\" 0 \"Mul\""),
                 "step 2 touches t, which step 1 is at work on until step 3");
  expect_refused(replaced(kPending, "step wait \"\" [] [] 1", "step wait \"\" [] [] 2"), "waits for step 2");
  expect_refused(replaced(kPending, "step wait \"\" [] [] 1", "step kernel \"reference.Neg\" [3] [3] -1"),
                 "nothing waits for step 1");
}

// ---- whatever a text says, it is an error or a program that binds

std::string damaged(const std::string& text, std::mt19937& random) {
  std::vector<size_t> lines = {0}, digits;
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] == '\n') lines.push_back(i + 1);
    if (text[i] >= '0' && text[i] <= '9') digits.push_back(i);
  }
  auto line = [&](size_t at) { return text.substr(lines[at], text.find('\n', lines[at]) + 1 - lines[at]); };
  std::string changed = text;
  const size_t one = random() % lines.size(), other = random() % lines.size();
  switch (random() % 6) {
    case 0: return changed.erase(lines[one], line(one).size());
    case 1: return changed.insert(lines[one], line(other));
    case 2: return changed.replace(lines[one], line(one).size(), line(other));
    case 3: changed.insert(digits[random() % digits.size()], "-"); return changed;
    default: changed[digits[random() % digits.size()]] = static_cast<char>('0' + random() % 10); return changed;
  }
}

// Kernels trust the attributes of their steps, which session/step_check.h looks at: bound are programs without any.
TEST(ProgramFuzz, ChangedProgramsBindOrAreRefused) {
  std::mt19937 random(3);
  for (const char* text : {kLoop, kCount, kNumber, kPending}) {
    int passed = 0, refused = 0;
    for (int i = 0; i < 1000; ++i) {
      std::string changed = damaged(text, random);
      if (random() % 3 == 0) changed = damaged(changed, random);
      try {
        Program program = written(changed);
        EXPECT_EQ(print(parse_program(print(program))), print(program));
        set_lifetimes(program);
        check(program);
        if (changed.find("attr ") == std::string::npos) {
          Executor executor(program, {.guard = i % 2 == 0});
          executor.memory(std::vector<int64_t>(program.symbols.size(), 40));
        }
        ++passed;
      } catch (const Error&) {
        ++refused;
      }
    }
    EXPECT_GT(passed, 20) << text;
    EXPECT_GT(refused, 200) << text;
  }
}

}  // namespace
}  // namespace lowtide
