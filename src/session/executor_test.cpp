// The executor on planned graphs: what a caller of the engine relies on.

#include "runtime/executor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "bind/binding.h"
#include "emit/plan.h"
#include "grad/gradient.h"
#include "ir/parse.h"
#include "pack/csv.h"
#include "passes/optimize.h"

namespace lowtide {
namespace {

constexpr char kModel[] = R"(
graph @net(%x: f32[batch, 8] input, %ids: i64[batch] input, %table: f32[16, 8] param, %w: f32[8, 8] param,
           %count: f32[] buffer) where batch in [1, 64] {
  %e: f32[batch, 8] = Gather(axis=0) %table, %ids
  %s: f32[batch, 8] = Add %e, %x
  %h: f32[batch, 8] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %s, %w
  %g: f32[batch, 8] = FastGelu %h
  %d: f32[batch, 8] = Dropout(ratio=0.25, stream=3) %g
  %h2: f32[batch, 8] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %d, %w
  %t: f32[batch, 8] = Tanh %h2
  %loss: f32[] = ReduceMean(axes=[0, 1], keepdims=false) %t
  %one: f32[] = Constant(dtype=f32, value=1.0)
  %more: f32[] = Add %count, %one
  return %loss output, %more update %count
}
)";

Program planned(const PlanOptions& options = {}, std::string_view model = kModel) {
  Graph graph = parse(model);
  optimize_forward(graph, {});
  Graph training = build_gradient(graph);
  optimize_training(training, {});
  return plan(training, options).program;
}

struct Batch {
  explicit Batch(int64_t size, float seed = 1)
      : x(static_cast<size_t>(size) * 8), ids(static_cast<size_t>(size)), table(16 * 8), w(64) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(seed + static_cast<float>(i));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i * 5 % 16);
    for (size_t i = 0; i < table.size(); ++i) table[i] = std::cos(static_cast<float>(i));
    for (size_t i = 0; i < w.size(); ++i) w[i] = 0.3f * std::sin(static_cast<float>(3 * i));
  }
  std::vector<TensorRef> tensors() {
    auto ref = [](void* data, DType dtype, std::vector<int64_t> sizes) {
      TensorRef tensor;
      tensor.data = data;
      tensor.dtype = dtype;
      tensor.rank = static_cast<int32_t>(sizes.size());
      tensor.present = true;
      int64_t stride = 1;
      for (size_t i = sizes.size(); i-- > 0;) {
        tensor.sizes[i] = sizes[i];
        tensor.strides[i] = stride;
        stride *= sizes[i];
      }
      return tensor;
    };
    const int64_t size = static_cast<int64_t>(ids.size());
    return {ref(x.data(), DType::kF32, {size, 8}), ref(ids.data(), DType::kI64, {size}),
            ref(table.data(), DType::kF32, {16, 8}), ref(w.data(), DType::kF32, {8, 8}), ref(&count, DType::kF32, {})};
  }
  std::vector<float> x;
  std::vector<int64_t> ids;
  std::vector<float> table, w;
  float count = 5;
};

struct StepResult {
  float loss;
  std::vector<std::vector<float>> gradients;
  friend bool operator==(const StepResult&, const StepResult&) = default;
};

std::vector<TensorRef> saved_tensors(const Executor& executor, Batch& batch) {
  std::vector<TensorRef> saved, tensors = batch.tensors();
  for (size_t i = 0; i < tensors.size(); ++i)
    if (executor.program().inputs[i].saved) saved.push_back(tensors[i]);
  return saved;
}

std::vector<OwnedTensor> backward(Executor& executor, RunState& state, Batch& batch) {
  TensorRef one;
  static float number = 1;
  one.data = &number;
  one.present = true;
  return executor.backward(state, {&one, 1}, saved_tensors(executor, batch)).tensors();
}

std::vector<std::vector<float>> values(const std::vector<OwnedTensor>& tensors) {
  std::vector<std::vector<float>> result;
  for (const OwnedTensor& tensor : tensors)
    result.emplace_back(tensor.ref.as<float>(), tensor.ref.as<float>() + tensor.ref.numel());
  return result;
}

StepResult step(Executor& executor, Batch& batch, uint64_t key = 9) {
  std::shared_ptr<RunState> state;
  const std::vector<OwnedTensor> outputs = executor.forward(batch.tensors(), key, &state);
  return {*outputs[0].ref.as<float>(), values(backward(executor, *state, batch))};
}

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

PlanOptions with_a_region_per_gradient() {
  PlanOptions options;
  options.first_bucket_bytes = options.bucket_bytes = 1;
  return options;
}

TEST(Executor, RegionsHandOutTheSameGradientsOneByOne) {
  for (const bool guard : {false, true}) {
    Executor whole(planned(), {.guard = guard}), parted(planned(with_a_region_per_gradient()), {.guard = guard});
    ASSERT_EQ(parted.program().regions.size(), 3u);
    Batch batch(6), other(6);
    const StepResult expected = step(whole, batch);
    EXPECT_EQ(step(parted, other), expected);
    std::shared_ptr<RunState> state;
    parted.forward(other.tensors(), 9, &state);
    static float number = 1;
    TensorRef one;
    one.data = &number;
    one.present = true;
    EXPECT_THROW(parted.run_next_region(*state), Error);  // not begun
    parted.begin_backward(*state, {&one, 1}, saved_tensors(parted, other));
    for (size_t region = 1; region < 3; ++region) {
      EXPECT_FALSE(parted.is_done(*state));
      const std::vector<OwnedTensor> handed_out = parted.run_next_region(*state).tensors();
      const std::vector<int32_t>& gradients = parted.program().regions[region].gradients;
      ASSERT_EQ(handed_out.size(), gradients.size());
      for (size_t i = 0; i < gradients.size(); ++i)
        EXPECT_EQ(values(handed_out)[i], expected.gradients[static_cast<size_t>(gradients[i])]);
    }
    EXPECT_TRUE(parted.is_done(*state));
    EXPECT_THROW(parted.run_next_region(*state), Error);
  }
}

// The weight is tied: its gradient is final behind the sum of both, and leaves there.
TEST(Executor, APlanMayCutBackwardBehindGradients) {
  Executor whole(planned(), {}), parted(planned(with_a_region_per_gradient()), {.guard = true});
  const Program& program = parted.program();
  ASSERT_EQ(program.regions.size(), 3u);
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const ProgramStep& emit = program.steps[i];
    if (emit.kind != StepKind::kEmit) continue;
    const auto writes = [&](const ProgramStep& step) {
      const int32_t buffer = program.operands[static_cast<size_t>(emit.inputs[0])].buffer;
      return std::any_of(step.outputs.begin(), step.outputs.end(), [&](int32_t operand) {
        return operand >= 0 && program.operands[static_cast<size_t>(operand)].buffer == buffer;
      });
    };
    EXPECT_TRUE(writes(program.steps[i - 1])) << emit.node;
    EXPECT_TRUE(std::none_of(program.steps.begin() + static_cast<std::ptrdiff_t>(i), program.steps.end(), writes));
  }
  Batch batch(6), other(6);
  const StepResult expected = step(whole, batch);
  std::shared_ptr<RunState> state;
  const std::vector<OwnedTensor> outputs = parted.forward(other.tensors(), 9, &state);
  float number = 1;
  TensorRef one;
  one.data = &number;
  one.present = true;
  parted.begin_backward(*state, {&one, 1}, saved_tensors(parted, other));
  for (size_t region = 1; region < 3; ++region) {
    const std::vector<OwnedTensor> handed_out = parted.run_next_region(*state).tensors();
    ASSERT_EQ(handed_out.size(), 1u);
    EXPECT_EQ(values(handed_out)[0], expected.gradients[static_cast<size_t>(program.regions[region].gradients[0])]);
  }
}

// Layers that grow towards the input: most is live where the last gradient is made, beside those that are kept.
constexpr char kLayers[] = R"(
graph @layers(%x: f32[2, 256] input, %a: f32[128, 256] param, %b: f32[64, 128] param, %c: f32[32, 64] param) {
  %h: f32[2, 128] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %x, %a
  %i: f32[2, 64] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %h, %b
  %j: f32[2, 32] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %i, %c
  %loss: f32[] = ReduceMean(axes=[0, 1], keepdims=false) %j
  return %loss output
}
)";

// A step of the layers; what its regions hand out goes to `take`, with the numbers of the gradients.
struct LayeredStep {
  explicit LayeredStep(const ExecutorOptions& running) : executor(plan_layers(), running) {
    int32_t seed = 1;
    for (const ProgramInput& input : executor.program().inputs) {
      const Binding& binding = executor.binding({});
      const int64_t rows = binding.values[static_cast<size_t>(input.sizes[0])];
      const int64_t columns = binding.values[static_cast<size_t>(input.sizes[1])];
      numbers.emplace_back(static_cast<size_t>(rows * columns));
      for (float& number : numbers.back()) number = std::sin(static_cast<float>(seed++));
      TensorRef tensor = refs.emplace_back();
      tensor.data = numbers.back().data();
      tensor.rank = 2;
      tensor.present = true;
      tensor.sizes[0] = rows;
      tensor.sizes[1] = tensor.strides[0] = columns;
      tensor.strides[1] = 1;
      refs.back() = tensor;
    }
  }
  static Program plan_layers() {
    PlanOptions options = with_a_region_per_gradient();
    options.disabled_kernels = {"cpu", "blas", "aten"};  // reference kernels have no scratch
    return planned(options, kLayers);
  }

  template <class Take>
  void run(HandOver hand_over, Take&& take) {
    std::shared_ptr<RunState> state;
    const std::vector<OwnedTensor> outputs = executor.forward(refs, 0, &state, INT64_MAX, hand_over);
    float number = 1;
    TensorRef one;
    one.data = &number;
    one.present = true;
    std::vector<TensorRef> saved;
    for (size_t i = 0; i < refs.size(); ++i)
      if (executor.program().inputs[i].saved) saved.push_back(refs[i]);
    executor.begin_backward(*state, {&one, 1}, saved);
    for (size_t region = 1; !executor.is_done(*state); ++region)
      take(executor.program().regions[region].gradients, executor.run_next_region(*state));
  }
  std::vector<std::vector<float>> gradients(HandOver hand_over) {
    std::vector<std::vector<float>> found(3);
    run(hand_over, [&](const std::vector<int32_t>& which, const Gradients& handed_out) {
      for (size_t i = 0; i < which.size(); ++i) found[static_cast<size_t>(which[i])] = values(handed_out.tensors())[i];
    });
    return found;
  }

  std::vector<std::vector<float>> numbers;
  std::vector<TensorRef> refs;
  Executor executor;
};

TEST(Executor, WhatNobodyHoldsAtACutLeavesThePeakOfLaterSteps) {
  const int64_t b = 64 * 128 * 4, c = 32 * 64 * 4;
  LayeredStep step({});
  const int64_t before = step.executor.memory({}).lower_bound_bytes;
  const std::vector<std::vector<float>> first = step.gradients(HandOver::kByRegion);
  EXPECT_EQ(step.executor.memory({}).lower_bound_bytes, before);
  EXPECT_EQ(step.gradients(HandOver::kByRegion), first);
  EXPECT_EQ(step.executor.memory({}).lower_bound_bytes, before - b - c);
  // A step of another kind has habits of its own.
  EXPECT_EQ(step.gradients(HandOver::kByRegionOntoOthers), first);
  EXPECT_EQ(step.executor.memory({}).lower_bound_bytes, before);
}

TEST(Executor, AGradientThatSomebodyHoldsAfterAllStaysHis) {
  for (const bool guard : {false, true}) {
    LayeredStep step({.guard = guard});
    const std::vector<std::vector<float>> expected = step.gradients(HandOver::kByRegion);
    for (int times = 0; times < 2; ++times) {
      std::vector<std::vector<OwnedTensor>> held;
      std::vector<int32_t> order;
      step.run(HandOver::kByRegion, [&](const std::vector<int32_t>& which, const Gradients& handed_out) {
        order.push_back(which.at(0));
        held.push_back(handed_out.tensors());
      });
      ASSERT_EQ(held.size(), 3u);
      for (size_t i = 0; i < held.size(); ++i) EXPECT_EQ(values(held[i])[0], expected[static_cast<size_t>(order[i])]);
    }
    EXPECT_EQ(step.gradients(HandOver::kByRegion), expected);
  }
}

// An optimizer in a hook writes into the parameter, and other hooks into the gradient.
TEST(Executor, NoStepTouchesWhatHasBeenHandedOut) {
  LayeredStep step({});
  Program program = step.executor.program();
  ASSERT_EQ(program.regions.size(), 4u);
  // One step earlier it would.
  for (size_t region = 1; region < 3; ++region) {
    Program early = program;
    --early.regions[region].end;
    --early.regions[region + 1].first;
    EXPECT_THROW(check(early), Error) << print(early);
  }
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
