// Casts that kernels do as they read and write: the same bits as with the casts, on every instruction set.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/text.h"
#include "bind/binding.h"
#include "emit/plan.h"
#include "grad/gradient.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "kernels/cpu/isa.h"
#include "passes/optimize.h"
#include "runtime/executor.h"
#include "session/dense_floats.h"

namespace lowtide {
namespace {

// A layer under autocast: norms and sums in f32, products and what is at them in 16 bits.
constexpr std::string_view kModel = R"(
graph @net(%x: f32[b, 40, 64] input grad, %labels: i64[b*40] input, %g: f32[64] param, %h: f32[64] param, %w1: f32[64, 96] param, %b1: f32[96] param, %w2: f32[96, 64] param, %b2: f32[64] param, %head: f32[50, 64] param, %b3: f32[64] param, %w3: f32[64, 64] param) where b in [1, 64] {
  %n: f32[b, 40, 64], %m1: f32[b, 40], %s1: f32[b, 40] = LayerNormalization(axis=2, epsilon=1e-05) %x, %g, %h
  %nc: HALF[b, 40, 64] = Cast(to=HALF) %n
  %rows: HALF[b*40, 64] = Reshape(shape=[b*40, 64]) %nc
  %w1c: HALF[64, 96] = Cast(to=HALF) %w1
  %b1c: HALF[96] = Cast(to=HALF) %b1
  %u: HALF[b*40, 96] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=false) %rows, %w1c
  %a: HALF[b*40, 96] = FastGelu %u, %b1c
  %w2c: HALF[96, 64] = Cast(to=HALF) %w2
  %b2c: HALF[64] = Cast(to=HALF) %b2
  %v: HALF[b*40, 64] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=false) %a, %w2c
  %vr: HALF[b, 40, 64] = Reshape(shape=[b, 40, 64]) %v
  %d: HALF[b, 40, 64] = BiasDropout(ratio=0.25, stream=3) %vr, %b2c
  %df: f32[b, 40, 64] = Cast(to=f32) %d
  %r: f32[b, 40, 64] = Add %df, %x
  %q: f32[b, 40, 64], %s2: f32[b, 40] = SimplifiedLayerNormalization(axis=2, epsilon=1e-05) %r, %g
  %qc: HALF[b, 40, 64] = Cast(to=HALF) %q
  %qr: HALF[b*40, 64] = Reshape(shape=[b*40, 64]) %qc
  %w3c: HALF[64, 64] = Cast(to=HALF) %w3
  %b3c: HALF[64] = Cast(to=HALF) %b3
  %o: HALF[b*40, 64] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %qr, %w3c, %b3c
  %headc: HALF[50, 64] = Cast(to=HALF) %head
  %z: HALF[b*40, 50] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %o, %headc
  %loss: f32[], %lse: f32[b*40] = SoftmaxCrossEntropyLoss(ignore_index=-100, label_smoothing=0.0, reduction="mean") %z, %labels
  return %loss output
}
)";

Graph training_graph(std::string_view half, bool absorbs) {
  std::string text(kModel);
  for (size_t at = text.find("HALF"); at != std::string::npos; at = text.find("HALF")) text.replace(at, 4, half);
  Graph graph = parse(text);
  optimize_forward(graph, {});
  Graph training = build_gradient(graph);
  PassOptions options;
  options.verify_types = options.check_claims = true;
  if (!absorbs) options.disabled = {"absorb_casts"};
  optimize_training(training, options);
  return training;
}

int64_t casts(const Graph& graph) {
  return std::count_if(graph.order().begin(), graph.order().end(),
                       [&](NodeId id) { return has_trait(graph.node(id).op, Trait::kConvertsDtype); });
}

// The loss, then the gradients.
std::vector<std::vector<float>> step(const Program& program, int64_t batch) {
  std::vector<std::vector<float>> values;
  std::vector<int64_t> labels(static_cast<size_t>(batch * 40));
  for (size_t i = 0; i < labels.size(); ++i) labels[i] = i % 7 == 3 ? -100 : static_cast<int64_t>(i * i % 50);
  const std::vector<std::vector<int64_t>> shapes = {{batch, 40, 64}, {},   {64},     {64}, {64, 96}, {96},
                                                    {96, 64},        {64}, {50, 64}, {64}, {64, 64}};
  std::vector<TensorRef> inputs;
  values.reserve(shapes.size());
  for (size_t i = 0; i < shapes.size(); ++i) {
    int64_t numel = 1;
    for (int64_t size : shapes[i]) numel *= size;
    std::vector<float>& one = values.emplace_back(static_cast<size_t>(numel));
    for (size_t k = 0; k < one.size(); ++k) one[k] = std::sin(static_cast<float>(k * k % 1009) + static_cast<float>(i));
    inputs.push_back(dense(one.data(), shapes[i]));
  }
  inputs[1] = dense(labels.data(), {batch * 40});
  inputs[1].dtype = DType::kI64;
  Executor executor(program, {.guard = true});
  std::shared_ptr<RunState> state;
  std::vector<OwnedTensor> results = executor.forward(inputs, 7, &state);
  std::vector<TensorRef> saved;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (executor.program().inputs[i].saved) saved.push_back(inputs[i]);
  float one = 1;
  const TensorRef dloss = dense(&one, {});
  for (OwnedTensor& gradient : executor.backward(*state, {&dloss, 1}, saved).tensors())
    results.push_back(std::move(gradient));
  std::vector<std::vector<float>> found;
  for (const OwnedTensor& result : results)
    found.emplace_back(result.ref.as<float>(), result.ref.as<float>() + result.ref.numel());
  return found;
}

TEST(AbsorbedCasts, GiveTheSameBits) {
  for (const std::string_view half : {"bf16", "f16"}) {
    const Graph with = training_graph(half, false), without = training_graph(half, true);
    // The cast of the head's gradient is done where logits and gradient share bytes, in both.
    EXPECT_EQ(casts(with), 19);
    EXPECT_EQ(casts(without), 0) << print(without);
    const PlanResult plans[] = {plan(with), plan(without)};
    for (const ProgramStep& each : plans[1].program.steps)
      EXPECT_NE(each.kernel.substr(0, 10), "reference.") << each.node;
    for (const cpu::Isa isa : cpu::runnable_isas()) {
      SCOPED_TRACE(concat(half, " ", name(isa)));
      cpu::limit_isa(isa);
      for (int64_t batch : {1, 9}) {
        const auto expected = step(plans[0].program, batch), found = step(plans[1].program, batch);
        ASSERT_EQ(expected.size(), 11u);
        ASSERT_EQ(found.size(), expected.size());
        for (size_t i = 0; i < expected.size(); ++i) {
          ASSERT_EQ(found[i].size(), expected[i].size());
          EXPECT_EQ(std::memcmp(found[i].data(), expected[i].data(), found[i].size() * sizeof(float)), 0) << i;
          double sum = 0;
          for (float value : expected[i]) sum += std::fabs(value);
          EXPECT_GT(sum, 0) << i << " is nothing";
        }
      }
    }
    cpu::limit_isa(cpu::kHighestIsa);
  }
}

}  // namespace
}  // namespace lowtide
