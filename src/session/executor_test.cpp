// The executor on planned graphs: what a caller of the engine relies on.

#include "runtime/executor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "bind/binding.h"
#include "pack/csv.h"
#include "runtime/block_pool.h"
#include "session/planned_steps.h"

namespace lowtide {
namespace {

TEST(Executor, StepsRepeatAndKeysMatter) {
  Executor executor(planned(), {});
  Batch batch(6);
  const StepResult first = step(executor, batch);
  EXPECT_EQ(first, step(executor, batch));
  EXPECT_FALSE(first == step(executor, batch, 10));
  EXPECT_EQ(batch.count, 8);  // one update a step
}

TEST(Executor, ALoadedProgramGivesTheSameBits) {
  const Program program = planned();
  Executor executor(program, {}), loaded(parse_program(print(program)), {});
  Batch batch(6);
  EXPECT_EQ(step(executor, batch), step(loaded, batch));
}

TEST(Executor, PendingForwardsGoBackwardInAnyOrder) {
  Executor executor(planned(), {});
  Batch a(6, 1), b(6, 2), c(3, 3);
  const StepResult alone_a = step(executor, a, 1), alone_b = step(executor, b, 2), alone_c = step(executor, c, 3);
  std::shared_ptr<RunState> state_a, state_b, state_c;
  executor.forward(a.tensors(), 1, &state_a);
  executor.forward(b.tensors(), 2, &state_b);
  executor.forward(c.tensors(), 3, &state_c);
  EXPECT_EQ(values(backward(executor, *state_b, b)), alone_b.gradients);
  EXPECT_EQ(values(backward(executor, *state_c, c)), alone_c.gradients);
  EXPECT_EQ(values(backward(executor, *state_a, a)), alone_a.gradients);
}

// Those that are pending at once hold what their backward needs; their bits are those of one alone.
TEST(Executor, PendingForwardsPassOnWhatTheyWorkIn) {
  for (const bool guard : {false, true}) {
    ExecutorOptions options;
    options.guard = guard;
    Executor executor(planned(), options);
    Batch a(60, 1), b(60, 2);
    const StepResult alone_a = step(executor, a, 1), alone_b = step(executor, b, 2);
    const int64_t alone = executor.memory(std::vector<int64_t>{60}).peak_bytes;
    for (int round = 0; round < 2; ++round) {
      process_pool().trim();
      const int64_t before = process_pool().live_bytes();
      std::shared_ptr<RunState> state_a, state_b;
      executor.forward(a.tensors(), 1, &state_a);
      executor.forward(b.tensors(), 2, &state_b);
      const int64_t pending = process_pool().live_bytes() - before;
      const MemoryReport report = executor.memory(std::vector<int64_t>{60});
      EXPECT_EQ(report.pending_forwards, 2);
      EXPECT_LT(report.peak_bytes, 2 * alone);
      const bool knows_two = round > 0;  // when the first began
      EXPECT_LE(pending, knows_two ? 2 * report.kept_bytes + report.output_bytes : INT64_MAX);
      EXPECT_EQ(values(backward(executor, *state_b, b)), alone_b.gradients);
      EXPECT_EQ(values(backward(executor, *state_a, a)), alone_a.gradients);
      const int64_t taken = process_pool().free_bytes() + process_pool().live_bytes() - before;
      EXPECT_LE(taken, knows_two ? report.peak_bytes : INT64_MAX);
    }
    EXPECT_EQ(step(executor, a, 1), alone_a);  // still as if two came
    EXPECT_EQ(step(executor, a, 1), alone_a);
    EXPECT_EQ(executor.memory(std::vector<int64_t>{60}).peak_bytes, alone);
  }
}

// A kernel takes scratch at some sizes and none at others.
TEST(Executor, AKnownPackingOrderServesOtherSizes) {
  const Program program = planned();
  std::vector<int32_t> known = bind_program(program, {60}, {}, false)->pack_order;
  const int32_t left_out = known.front();
  known.erase(known.begin());
  const std::unique_ptr<Binding> binding = bind_program(program, {6}, {}, false);
  const auto buffers = static_cast<int32_t>(program.buffers.size());
  std::vector<int32_t> with_scratch;
  for (int32_t step = 0; std::cmp_less(step, program.steps.size()); ++step) {
    if (binding->steps[static_cast<size_t>(step)].scratch_bytes > 0)
      with_scratch.push_back(buffers + step);
    else if (!std::ranges::count(known, buffers + step))
      known.push_back(buffers + step);
  }
  ASSERT_FALSE(with_scratch.empty());
  std::vector<int32_t> order = bind_program(program, {6}, known, false)->pack_order;
  for (const int32_t thing : with_scratch) EXPECT_EQ(std::ranges::count(order, thing), 1);
  EXPECT_EQ(std::ranges::count(order, left_out), 1);
  std::vector<int32_t> packed = binding->pack_order;
  std::ranges::sort(order);
  std::ranges::sort(packed);
  EXPECT_EQ(order, packed);
}

TEST(Executor, ForwardAgainServesAFurtherBackwardAndWritesNothing) {
  Executor executor(planned(), {});
  Batch batch(6), other(3, 2);
  const StepResult first = step(executor, batch, 1);
  step(executor, other, 2);
  const std::shared_ptr<RunState> again = executor.run_forward(batch.tensors(), 1);
  EXPECT_EQ(values(backward(executor, *again, batch)), first.gradients);
  EXPECT_EQ(batch.count, 6);  // by the first forward alone
}

TEST(Executor, ASecondBackwardThroughOneStateIsRefused) {
  Executor executor(planned(), {});
  Batch batch(4);
  std::shared_ptr<RunState> state;
  executor.forward(batch.tensors(), 1, &state);
  backward(executor, *state, batch);
  try {
    backward(executor, *state, batch);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("a second time"), std::string::npos);
  }
}

TEST(Executor, HeldGradientsStayWhatTheyWere) {
  Executor executor(planned(), {});
  Batch a(6, 1), b(6, 2);
  const StepResult alone_b = step(executor, b);
  std::vector<std::vector<float>> before;
  std::vector<OwnedTensor> held;
  {
    std::shared_ptr<RunState> state;
    executor.forward(a.tensors(), 9, &state);
    held = backward(executor, *state, a);
    before = values(held);
  }
  // The arena is pinned by `held`: the next steps must not write into it.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(executor, b), alone_b);
  EXPECT_EQ(values(held), before);
}

TEST(Executor, AFailedStepChangesNothing) {
  Executor executor(planned(), {});
  Batch batch(4);
  batch.ids[2] = 99;
  try {
    step(executor, batch);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kRuntime);
    EXPECT_NE(std::string(error.what()).find("Gather"), std::string::npos) << error.what();
  }
  EXPECT_EQ(batch.count, 5);
  stop_flag() = true;
  batch.ids[2] = 1;
  try {
    step(executor, batch);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInterrupted);
  }
  EXPECT_EQ(batch.count, 5);
  step(executor, batch);
  EXPECT_EQ(batch.count, 6);
}

TEST(Executor, WrongTensorsAreNamed) {
  Executor executor(planned(), {});
  Batch batch(4);
  std::vector<TensorRef> tensors = batch.tensors();
  tensors[3].sizes[0] = 7;
  try {
    executor.forward(tensors, 0, nullptr);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("input w: expected f32[8, 8], found f32[7, 8]"), std::string::npos)
        << error.what();
  }
}

TEST(Guard, PassesOnOurPlans) {
  Batch batch(6);
  Executor plain(planned(), {}), guarded(planned(), {.guard = true});
  EXPECT_EQ(step(plain, batch), step(guarded, batch));
}

TEST(Guard, CatchesAWrongPlan) {
  const Program program = planned();
  auto planned_buffer = [](const ProgramBuffer& buffer) {
    return buffer.kind == BufferKind::kArena || buffer.kind == BufferKind::kGradient;
  };
  int pairs = 0;
  for (size_t a = 0; a < program.buffers.size(); ++a)
    for (size_t b = 0; b < a; ++b) {
      const ProgramBuffer &x = program.buffers[a], &y = program.buffers[b];
      if (!planned_buffer(x) || !planned_buffer(y) || x.first > y.last || y.first > x.last) continue;
      ++pairs;
      // Two that live at the same time, on top of each other.
      StepHooks put_over;
      put_over.begin = [&](const RunView& run) { run.bases[a] = run.bases[b]; };
      Executor executor(program, {.guard = true, .hooks = {put_over}});
      Batch batch(6);
      try {
        step(executor, batch);
        ADD_FAILURE() << "%" << x.name << " over %" << y.name << " went unnoticed";
      } catch (const InternalError& error) {
        EXPECT_NE(std::string(error.what()).find("guard"), std::string::npos) << error.what();
      }
    }
  EXPECT_GT(pairs, 10);
}

// ---- calls whose autograd context holds views of our memory

constexpr char kCalls[] = R"(
graph @calls(%x: f32[64] input grad) {
  %a: f32[64] = Mul %x, %x
  %y: f32[64] = aten::square.default(operands=["self"]) %a
  %b: f32[64] = Exp %y
  %c: f32[64] = Sin %b
  %d: f32[64] = Cos %c
  %loss: f32[] = ReduceSum(axes=[0], keepdims=false) %d
  return %loss output
}
)";

// Like PyTorch's autograd: the context keeps where the call's input and output lie, and backward reads them there.
struct SavedPointers {
  const float *input, *output;
};

CallHandler squares() {
  CallHandler handler;
  handler.forward = [](const CallRequest& request, CallContext* context) -> KernelStatus {
    const float* x = request.inputs[0].as<float>();
    float* y = request.outputs[0].as<float>();
    for (int i = 0; i < 64; ++i) y[i] = x[i] * x[i];
    if (request.wants_context) *context = std::make_shared<SavedPointers>(SavedPointers{x, y});
    return nullptr;
  };
  handler.backward = [](const CallGradRequest& request) -> KernelStatus {
    const auto* saved = static_cast<const SavedPointers*>(request.context.get());
    const float* dy = request.gradients[0].as<float>();
    float* dx = request.outputs[0].as<float>();
    // y / x = x where nobody has written over either.
    for (int i = 0; i < 64; ++i) dx[i] = dy[i] * (saved->input[i] + saved->output[i] / saved->input[i]);
    return nullptr;
  };
  return handler;
}

// The largest relative error of dx against the formula.
double error_of(const Graph& training) {
  Executor executor(plan(training, {}).program, {});
  executor.set_call_handler(squares());
  std::vector<float> x(64);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 0.2f + 0.01f * static_cast<float>(i);
  TensorRef ref, one;
  ref.data = x.data();
  ref.rank = 1;
  ref.present = one.present = true;
  ref.sizes[0] = 64;
  ref.strides[0] = 1;
  float number = 1;
  one.data = &number;
  std::shared_ptr<RunState> state;
  executor.forward({&ref, 1}, 0, &state);
  std::vector<TensorRef> saved;
  if (executor.program().inputs[0].saved) saved.push_back(ref);
  const std::vector<OwnedTensor> gradients = executor.backward(*state, {&one, 1}, saved).tensors();
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double v = x[i], b = std::exp(v * v * v * v);
    const double expected = -std::sin(std::sin(b)) * std::cos(b) * b * 4 * v * v * v;
    const double found = static_cast<double>(gradients[0].ref.as<float>()[i]);
    worst = std::max(worst, std::isfinite(found) ? std::fabs(found - expected) / std::fabs(expected) : 1e9);
  }
  return worst;
}

// The law of contexts: a call's inputs and outputs are operands of its backward node, so their bytes stay.
TEST(Contexts, WhatACallSavedStaysAlive) {
  Graph training = build_gradient(parse(kCalls));
  EXPECT_LT(error_of(training), 1e-3);  // f32 through three trigonometric functions
  // Broken on purpose: the backward node forgets them, the plan gives their bytes away, and the gradient is wrong.
  for (NodeId id : training.order()) {
    if (training.node(id).op != Op::kCallGrad) continue;
    while (training.node(id).inputs.size() > 2) training.drop_last_operand(id);
    training.edit(id).attrs.set("num_inputs", Dim(0));
  }
  EXPECT_GT(error_of(training), 1e-2);
}

TEST(Binding, PackingProblemRoundTripsThroughCsv) {
  Executor executor(planned(), {});
  const std::vector<int64_t> sizes = {6};
  const Binding& binding = executor.binding(sizes);
  const Problem problem = packing_problem(executor.program(), binding, {}, false);
  EXPECT_EQ(read_csv(write_csv(problem)).problem, problem);
  EXPECT_LE(binding.report.lower_bound_bytes, binding.report.arena_bytes);
}

}  // namespace
}  // namespace lowtide
