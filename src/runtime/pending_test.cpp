// Calls that a step begins and a later one waits for, from a program in text form.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "runtime/control_programs.h"

namespace lowtide {
namespace {

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

// The same in backward, whose state the caller holds: what was begun ends before the error arrives.
constexpr char kPendingBackward[] = R"(symbol "n" 0 dim 0 1 1000
expression [0 0]
expression [0 1]
expression [1 0]
expression [1 0 0 4 4]
input "x" f32 [2] [1] 0 0
incoming "dy" f32 [2] [1] 0 1
of 0
buffer "x" caller 3 0 0 0 0
buffer "y" output 3 0 0 0 0
buffer "dy" caller 3 0 0 -1 0
buffer "t" arena 3 1 3 0 0
buffer "u" arena 3 2 4 0 0
buffer "dx" gradient 3 4 5 0 0
operand 0 f32 0 [2] [1]
operand 1 f32 0 [2] [1]
operand 2 f32 0 [2] [1]
operand 3 f32 0 [2] [1]
operand 4 f32 0 [2] [1]
operand 5 f32 0 [2] [1]
region "forward" []
step kernel "reference.Relu" [0] [1] -1 "" 0 "Relu"
region "backward" [0]
step kernel "reference.Neg" [2] [3] -1 "" 0 "Neg"
step begin "" [3] [4] -1 "copy_out" 0 "send"
step wait "" [] [] 2 "" 0 "receive"
step kernel "reference.Neg" [4] [5] -1 "" 0 "Neg"
step emit "" [5] [] 0 "" 0 "gradient of x"
output "y" 1 0
gradient 5 0
contexts 0
constants ""
pack_order []
)";

TEST(Wait, AnInterruptedBackwardWaitsFirst) {
  bool stops = false;
  StepHooks stop;
  stop.after = [&](const RunView&, int32_t step) { stop_flag() = stops && step == 2; };
  Executor executor(written(kPendingBackward), {.hooks = {stop}});
  Sender sender;
  executor.set_call_handler(sender.handler());
  std::vector<float> x = waves(100), dy = waves(100, 2);
  const TensorRef input = row_major(x, DType::kF32, {100}), incoming = row_major(dy, DType::kF32, {100});
  std::shared_ptr<RunState> state;
  executor.forward({&input, 1}, 0, &state);
  EXPECT_EQ(floats(executor.backward(*state, {&incoming, 1}, {}).tensors().at(0)), dy);
  stops = true;
  executor.forward({&input, 1}, 0, &state);
  EXPECT_THROW(executor.backward(*state, {&incoming, 1}, {}), Error);
  EXPECT_EQ(sender.begun, 2);
  EXPECT_EQ(sender.ended, 2);
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

}  // namespace
}  // namespace lowtide
