// Gradients leave region by region, and what their takers do not hold is used again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "runtime/written_program.h"
#include "session/planned_steps.h"

namespace lowtide {
namespace {

PlanOptions with_a_region_per_gradient() {
  PlanOptions options;
  options.first_bucket_bytes = options.bucket_bytes = 1;
  return options;
}

TEST(HandOver, RegionsHandOutTheSameGradientsOneByOne) {
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
TEST(HandOver, APlanMayCutBackwardBehindGradients) {
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
  explicit LayeredStep(const ExecutorOptions& running, std::string_view model = kLayers)
      : executor(plan_layers(model), running) {
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
  static Program plan_layers(std::string_view model) {
    PlanOptions options = with_a_region_per_gradient();
    options.disabled_kernels = {"cpu", "blas", "aten"};  // reference kernels have no scratch
    Graph graph = parse(model);
    optimize_forward(graph, {});
    Graph training = build_gradient(graph);
    optimize_training(training, {});
    for (NodeId id : training.order())
      if (is_reduction(training.node(id).op)) options.late_waits.push_back({id, {}});
    return plan(training, options).program;
  }

  template <class Take>
  void run(HandOver hand_over, Take&& take) {
    std::shared_ptr<RunState> state;
    const std::vector<OwnedTensor> outputs = executor.forward(refs, 0, &state, budget, hand_over);
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

  int64_t budget = INT64_MAX;
  std::vector<std::vector<float>> numbers;
  std::vector<TensorRef> refs;
  Executor executor;
};

TEST(HandOver, WhatNobodyHoldsAtACutLeavesThePeakOfLaterSteps) {
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

// One that is held after all would need a second arena, which no budget has counted.
TEST(HandOver, UnderABudgetNothingIsTakenForUsedUp) {
  LayeredStep step({});
  const int64_t before = step.executor.memory({}).lower_bound_bytes;
  step.budget = 1 << 20;
  for (int times = 0; times < 3; ++times) step.gradients(HandOver::kByRegion);
  EXPECT_EQ(step.executor.memory({}).lower_bound_bytes, before);
}

TEST(HandOver, AGradientThatSomebodyHoldsAfterAllStaysHis) {
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

// %b's gradient travels while the last region begins, in which that of %a has been handed out.
TEST(HandOver, WhatIsAtWorkEndsBeforeAStepLeavesItsArena) {
  const std::string gathered = replaced(replaced(replaced(kLayers, "%b: f32[64, 128] param", "%b: f32[32, 128] param"),
                                                 "  %i:", "  %q: f32[64, 128] = AllGather(group=0, ranks=2) %b\n  %i:"),
                                        "%h, %b", "%h, %q");
  LayeredStep step({.guard = true}, gathered);
  int at_work = 0;
  CallHandler calls;
  calls.begin = [&](const CallRequest& request, PendingCall* pending) -> KernelStatus {
    const TensorRef from = request.inputs[0], to = request.outputs[0];
    ++at_work;
    *pending = [&at_work, from, to]() -> KernelStatus {
      for (int64_t i = 0; i < to.numel(); ++i) to.as<float>()[i] = from.as<float>()[i % from.numel()];
      --at_work;
      return nullptr;
    };
    return nullptr;
  };
  step.executor.set_call_handler(calls);
  const std::vector<std::vector<float>> expected = step.gradients(HandOver::kByRegion);
  std::vector<std::vector<OwnedTensor>> held;
  std::vector<int32_t> order;
  bool was_at_work = false;
  step.run(HandOver::kByRegion, [&](const std::vector<int32_t>& which, const Gradients& handed_out) {
    was_at_work = was_at_work || at_work > 0;
    order.insert(order.end(), which.begin(), which.end());
    held.push_back(handed_out.tensors());
  });
  EXPECT_TRUE(was_at_work);
  size_t next = 0;
  for (const std::vector<OwnedTensor>& each : held)
    for (const std::vector<float>& found : values(each)) EXPECT_EQ(found, expected[static_cast<size_t>(order[next++])]);
  EXPECT_EQ(next, 3u);
  EXPECT_EQ(step.gradients(HandOver::kByRegion), expected);
  EXPECT_EQ(at_work, 0);
}

// An optimizer in a hook writes into the parameter, and other hooks into the gradient.
TEST(HandOver, NoStepTouchesWhatHasBeenHandedOut) {
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

}  // namespace
}  // namespace lowtide
