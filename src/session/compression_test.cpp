// Compressed stashes through the executor: the same bits as without, in fewer bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/text.h"
#include "bind/binding.h"
#include "emit/plan.h"
#include "grad/gradient.h"
#include "ir/parse.h"
#include "memory/optimizer.h"
#include "passes/optimize.h"
#include "report/config.h"
#include "report/selection.h"
#include "runtime/executor.h"

namespace lowtide {
namespace {

// The indices of a max pool, a mask made in forward, and the index of a maximum, which a view shows again.
constexpr char kModel[] = R"(
graph @net(%x: f32[b, 6, 12, 10] input grad, %ids: i64[b, 5] input, %table: f32[300, 5] param) where b in [1, 64] {
  %h: f32[b, 6, 12, 10] = Tanh %x
  %pooled: f32[b, 6, 7, 6], %at: i64[b, 6, 7, 6] = MaxPool(ceil_mode=false, dilations=[1, 1], kernel_shape=[3, 3], pads=[1, 1, 2, 2], strides=[2, 2]) %h
  %s: f32[b, 6, 7] = ReduceSum(axes=[3], keepdims=false) %pooled
  %scores: f32[b, 6] = ReduceMax(axes=[2], keepdims=false) %s
  %best: i64[b] = ArgMax(axis=1, keepdims=false) %scores
  %row: i64[b, 1] = Unsqueeze(axes=[1]) %best
  %e: f32[b, 5] = Gather(axis=0) %table, %best
  %e1: f32[b, 1, 5] = Gather(axis=0) %table, %row
  %e2: f32[b, 5] = Squeeze(axes=[1]) %e1
  %sum: f32[b, 5] = Mul %e, %e2
  %zero: i64[] = Constant(dtype=i64, int_value=0)
  %mask: bool[b, 5] = Greater %ids, %zero
  %fill: f32[] = Constant(dtype=f32, value=-2.0)
  %masked: f32[b, 5] = Where %mask, %sum, %fill
  %d: f32[b, 5] = Dropout(ratio=0.25, stream=3) %masked
  %total: f32[b, 1] = ReduceSum(axes=[1], keepdims=true) %d
  %y: f32[b, 6] = Mul %scores, %total
  %loss: f32[] = ReduceMean(axes=[0, 1], keepdims=false) %y
  return %loss output
}
)";

Graph training_graph() {
  Graph graph = parse(kModel);
  optimize_forward(graph, {});
  Graph training = build_gradient(graph);
  optimize_training(training, {});
  return training;
}

Graph compressed(const Graph& training, const char* config) {
  const PlanResult before = plan(training);
  MemoryOptions options;
  options.requests = parse_memory_config(config);
  const MemoryOptimizer optimizer(training, before, options);
  const Selection selection = select(optimizer);
  for (const RequestOutcome& outcome : selection.outcomes) EXPECT_EQ(outcome.applied, 1) << outcome.request.cluster;
  return optimizer.apply(selection.chosen);
}

template <class T>
TensorRef tensor(std::vector<T>& values, DType dtype, std::vector<int64_t> sizes) {
  TensorRef ref;
  ref.data = values.data();
  ref.dtype = dtype;
  ref.rank = static_cast<int32_t>(sizes.size());
  ref.present = true;
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    ref.sizes[i] = sizes[i];
    ref.strides[i] = stride;
    stride *= sizes[i];
  }
  return ref;
}

// The loss, then the gradients.
std::vector<std::vector<float>> step(const Graph& training, int64_t batch) {
  std::vector<float> x(static_cast<size_t>(batch * 6 * 12 * 10)), table(300 * 5), one = {1};
  std::vector<int64_t> ids(static_cast<size_t>(batch * 5));
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i * i % 1009));
  for (size_t i = 0; i < table.size(); ++i) table[i] = std::cos(static_cast<float>(i));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i % 3);
  const std::vector<TensorRef> inputs = {tensor(x, DType::kF32, {batch, 6, 12, 10}),
                                         tensor(ids, DType::kI64, {batch, 5}), tensor(table, DType::kF32, {300, 5})};
  Executor executor(plan(training).program, {.guard = true});
  std::shared_ptr<RunState> state;
  std::vector<OwnedTensor> results = executor.forward(inputs, 7, &state);
  std::vector<TensorRef> saved;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (executor.program().inputs[i].saved) saved.push_back(inputs[i]);
  const TensorRef dloss = tensor(one, DType::kF32, {});
  for (OwnedTensor& gradient : executor.backward(*state, {&dloss, 1}, saved).tensors())
    results.push_back(std::move(gradient));
  std::vector<std::vector<float>> values;
  for (const OwnedTensor& result : results)
    values.emplace_back(result.ref.as<float>(), result.ref.as<float>() + result.ref.numel());
  return values;
}

int64_t count(const Graph& graph, Op op) {
  return std::count_if(graph.order().begin(), graph.order().end(), [&](NodeId id) { return graph.node(id).op == op; });
}

int64_t copies(const Graph& graph) {
  const PlanResult planned = plan(graph);
  return std::count_if(planned.program.steps.begin(), planned.program.steps.end(),
                       [](const ProgramStep& step) { return step.kernel == "cpu.Copy"; });
}

int64_t arena_bytes(const Graph& graph, int64_t batch) {
  Executor executor(plan(graph).program, {});
  return executor.binding(std::vector<int64_t>{batch}).report.arena_bytes;
}

TEST(Compression, GivesTheSameBits) {
  const Graph training = training_graph();
  const Graph fewer = compressed(training, "MaxPool+:3:-1,ArgMax+:3:-1,Greater+:3:-1");
  EXPECT_EQ(count(fewer, Op::kPackBits), 3);
  EXPECT_EQ(count(fewer, Op::kUnpackBits), 3);
  for (int64_t batch : {1, 2, 5, 64}) {
    SCOPED_TRACE(batch);
    const auto expected = step(training, batch), found = step(fewer, batch);
    ASSERT_EQ(expected.size(), 3u);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(found[i].size(), expected[i].size());
      EXPECT_EQ(std::memcmp(found[i].data(), expected[i].data(), found[i].size() * sizeof(float)), 0) << i;
    }
    double sum = 0;
    for (float value : expected[1]) sum += std::fabs(value);
    EXPECT_GT(sum, 0) << "the step computes nothing";
  }
}

// A max pool keeps its images channels-last: packing them must not turn them round.
TEST(Compression, CopiesNothing) {
  const Graph training = training_graph();
  EXPECT_EQ(copies(compressed(training, "MaxPool+:3:-1,ArgMax+:3:-1,Greater+:3:-1")), copies(training));
}

// Four layers of Tanh and a max pool of the same size: 4 bytes of stash and 8 of index an element and layer.
Graph pools() {
  std::string text = "graph @pools(%x: f32[b, 8, 14, 14] input grad) where b in [1, 64] {\n";
  std::string last = "%x";
  for (int i = 0; i < 4; ++i) {
    text += concat("  %h", i, ": f32[b, 8, 14, 14] = Tanh ", last, "\n  %y", i, ": f32[b, 8, 14, 14], %at", i,
                   ": i64[b, 8, 14, 14] = MaxPool(ceil_mode=false, dilations=[1, 1], kernel_shape=[3, 3], "
                   "pads=[1, 1, 1, 1], strides=[1, 1]) %h",
                   i, "\n");
    last = concat("%y", i);
  }
  return build_gradient(parse(text + "  return " + last + " output\n}"));
}

TEST(Compression, MakesTheArenaSmaller) {
  const Graph training = pools();
  const PlanResult before = plan(training);
  MemoryOptions options;
  options.requests = parse_memory_config("MaxPool+:3:-1");
  const MemoryOptimizer optimizer(training, before, options);
  const Selection selection = select(optimizer);
  ASSERT_EQ(selection.chosen.size(), 4u);
  // 7 of 12 bytes, but for the layer that backward is at.
  EXPECT_LT(arena_bytes(optimizer.apply(selection.chosen), 16), 0.65 * static_cast<double>(arena_bytes(training, 16)));
}

}  // namespace
}  // namespace lowtide
