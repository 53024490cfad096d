// Plans whose runs of steps go by blocks of rows: the bits of the plan without, in fewer bytes.
#include "memory/row_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/size_code.h"
#include "bind/binding.h"
#include "emit/plan.h"
#include "grad/gradient.h"
#include "ir/parse.h"
#include "passes/optimize.h"
#include "runtime/executor.h"

namespace lowtide {
namespace {

// Two layers of a transformer without attention.
constexpr char kLayers[] = R"(
graph @mlp(%x: f32[b, s, 24] input, %scale: f32[24] param, %shift: f32[24] param, %w1: f32[96, 24] param,
           %b1: f32[96] param, %w2: f32[24, 96] param, %b2: f32[24] param) where b in [0, 64], s in [0, 4096] {
  %n: f32[b, s, 24], %m: f32[b, s], %i: f32[b, s] = LayerNormalization(axis=2, epsilon=1e-05) %x, %scale, %shift
  %r: f32[b*s, 24] = Reshape(shape=[b*s, 24]) %n
  %h: f32[b*s, 96] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %r, %w1
  %h3: f32[b, s, 96] = Reshape(shape=[b, s, 96]) %h
  %g: f32[b, s, 96] = BiasGelu %h3, %b1
  %g2: f32[b*s, 96] = Reshape(shape=[b*s, 96]) %g
  %y: f32[b*s, 24] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %g2, %w2, %b2
  %y3: f32[b, s, 24] = Reshape(shape=[b, s, 24]) %y
  %z: f32[b, s, 24] = Add %x, %y3
  %zr: f32[b*s, 24] = Reshape(shape=[b*s, 24]) %z
  %k: f32[b*s, 96] = Gemm(alpha=0.5, beta=1.0, transA=false, transB=true) %zr, %w1, %b1
  %kg: f32[b*s, 96] = Tanh %k
  %o: f32[b*s, 24] = MatMul %kg, %w1
  %q: f32[b*s, 24] = Mul %o, %o
  %loss: f32[] = ReduceMean(axes=[0, 1], keepdims=false) %q
  return %loss output
}
)";

// Backward goes from the second layer's product to its activation where it may be cut: the weight is read no more.
constexpr char kTwoProducts[] = R"(
graph @two(%x: f32[b, s, 24] input, %w1: f32[96, 24] param, %w2: f32[24, 96] param) where b in [0, 64], s in [0, 4096] {
  %r: f32[b*s, 24] = Reshape(shape=[b*s, 24]) %x
  %h: f32[b*s, 96] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %r, %w1
  %g: f32[b*s, 96] = Tanh %h
  %y: f32[b*s, 24] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %g, %w2
  %q: f32[b*s, 24] = Mul %y, %y
  %loss: f32[] = ReduceMean(axes=[0, 1], keepdims=false) %q
  return %loss output
}
)";

// Attention with a mask for each batch, and numbers that are drawn, around what grows with the rows.
constexpr char kAttention[] = R"(
graph @attention(%x: f32[b, s, 24] input, %mask: f32[b, 1, 1, s] input, %bias: f32[1, 2, 1, s] input, %w: f32[72, 24] param,
                 %o: f32[24, 24] param, %c: f32[24] param) where b in [0, 64], s in [0, 4096] {
  %d: f32[b, s, 24] = Dropout(ratio=0.25, stream=2) %x
  %r: f32[b*s, 24] = Reshape(shape=[b*s, 24]) %d
  %qkv: f32[b*s, 72] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %r, %w
  %h: f32[b, s, 3, 2, 12] = Reshape(shape=[b, s, 3, 2, 12]) %qkv
  %q5: f32[b, s, 1, 2, 12] = Slice(axis=2, end=1, start=0, step=1) %h
  %k5: f32[b, s, 1, 2, 12] = Slice(axis=2, end=2, start=1, step=1) %h
  %v5: f32[b, s, 1, 2, 12] = Slice(axis=2, end=3, start=2, step=1) %h
  %q4: f32[b, s, 2, 12] = Squeeze(axes=[2]) %q5
  %k4: f32[b, s, 2, 12] = Squeeze(axes=[2]) %k5
  %v4: f32[b, s, 2, 12] = Squeeze(axes=[2]) %v5
  %q: f32[b, 2, s, 12] = Transpose(perm=[0, 2, 1, 3]) %q4
  %k: f32[b, 2, s, 12] = Transpose(perm=[0, 2, 1, 3]) %k4
  %v: f32[b, 2, s, 12] = Transpose(perm=[0, 2, 1, 3]) %v4
  %a: f32[b, 2, s, 12], %l: f32[b, 2, s] = Attention(dropout=0.25, is_causal=false, scale=0.3, stream=0) %q, %k, %v, %mask, %bias
  %t: f32[b, s, 2, 12] = Transpose(perm=[0, 2, 1, 3]) %a
  %p: f32[b*s, 24] = Reshape(shape=[b*s, 24]) %t
  %y: f32[b*s, 24] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %p, %o
  %y3: f32[b, s, 24] = Reshape(shape=[b, s, 24]) %y
  %z: f32[b, s, 24] = BiasDropout(ratio=0.25, stream=1) %y3, %c, %d
  %e: f32[b, s, 24] = Mul %z, %z
  %loss: f32[] = ReduceMean(axes=[0, 1, 2], keepdims=false) %e
  return %loss output
}
)";

// Of two that read %t, the first is written while the second has not read it.
constexpr char kTwoReaders[] = R"(
graph @readers(%x: f32[b, s, 24] input, %w: f32[24, 24] param) where b in [0, 64], s in [0, 4096] {
  %r: f32[b*s, 24] = Reshape(shape=[b*s, 24]) %x
  %t: f32[b*s, 24] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %r, %w
  %u: f32[b*s, 24] = Tanh %t
  %v: f32[b*s, 24] = Exp %t
  %m: f32[b*s, 24] = Mul %u, %v
  %o: f32[b*s, 24] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %m, %w
  %q: f32[b*s, 24] = Mul %o, %o
  %loss: f32[] = ReduceMean(axes=[0, 1], keepdims=false) %q
  return %loss output
}
)";

Graph training_graph(const char* text = kLayers) {
  Graph graph = parse(text);
  optimize_forward(graph, {});
  Graph training = build_gradient(graph);
  optimize_training(training, {});
  return training;
}

class Step {
 public:
  explicit Step(const Program& program, bool guard) : executor_(program, {.guard = guard}) {}

  // The loss, then all gradients, bit for bit.
  std::vector<std::vector<float>> run(int64_t b, int64_t s) {
    std::vector<std::vector<float>> data;
    std::vector<TensorRef> inputs, saved;
    const Program& program = executor_.program();
    const std::vector<int64_t> symbols = {b, s};
    data.reserve(program.inputs.size());
    for (const ProgramInput& input : program.inputs) {
      std::vector<int64_t> each;
      for (ExpressionId id : input.sizes)
        each.push_back(run_size_code(program.expressions[static_cast<size_t>(id)], symbols));
      TensorRef ref;
      ref.rank = static_cast<int32_t>(each.size());
      ref.present = true;
      int64_t stride = 1;
      for (size_t i = each.size(); i-- > 0;) {
        ref.sizes[i] = each[i];
        ref.strides[i] = stride;
        stride *= each[i];
      }
      std::vector<float>& values = data.emplace_back(static_cast<size_t>(stride) + 1);
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = 0.4f * std::sin(static_cast<float>(data.size()) + 1.7f * static_cast<float>(i));
      ref.data = values.data();
      inputs.push_back(ref);
    }
    for (size_t i = 0; i < inputs.size(); ++i)
      if (executor_.program().inputs[i].saved) saved.push_back(inputs[i]);
    std::shared_ptr<RunState> state;
    std::vector<std::vector<float>> found;
    const auto take = [&](const OwnedTensor& tensor) {
      found.emplace_back(tensor.ref.as<float>(), tensor.ref.as<float>() + tensor.ref.numel());
    };
    for (const OwnedTensor& output : executor_.forward(inputs, 1, &state)) take(output);
    static float number = 1;
    TensorRef one;
    one.data = &number;
    one.present = true;
    for (const OwnedTensor& gradient : executor_.backward(*state, {&one, 1}, saved).tensors()) take(gradient);
    return found;
  }
  int64_t arena_bytes(int64_t b, int64_t s) {
    const std::vector<int64_t> sizes = {b, s};
    return executor_.memory(sizes).arena_bytes;
  }

 private:
  Executor executor_;
};

bool same_bits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i].size() != b[i].size() || std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0)
      return false;
  return true;
}

struct Plans {
  Graph graph;
  PlanResult whole;
  std::vector<RowBlocks> blocks;
  Program looped;

  explicit Plans(const char* text = kLayers, PlanOptions options = {})
      : graph(training_graph(text)), whole(plan(graph, options)) {
    const std::unique_ptr<Binding> binding = bind_program(whole.program, {4, 1000}, {}, false);
    blocks = without_prices(choose_row_blocks(whole, *binding, {{"b", 4}, {"s", 1000}}, Prices()));
    options.row_blocks = blocks;
    looped = plan(graph, options).program;
  }
};

std::vector<std::pair<int32_t, int32_t>> runs_of(const Plans& plans) {
  std::vector<std::pair<int32_t, int32_t>> runs;
  for (const RowBlocks& each : plans.blocks) runs.emplace_back(each.first, each.end);
  return runs;
}

TEST(RowBlocks, GiveTheBitsOfThePlanWithout) {
  const Plans plans;
  ASSERT_FALSE(plans.blocks.empty());
  EXPECT_EQ(plans.looped.loops.size(), plans.blocks.size());
  EXPECT_EQ(print(parse_program(print(plans.looped))), print(plans.looped));
  Step whole(plans.whole.program, false), looped(plans.looped, false), guarded(plans.looped, true);
  for (const auto& [b, s] : {std::pair<int64_t, int64_t>{4, 1000},
                             {2, 512},
                             {1, 256},
                             {1, 257},
                             {5, 307},
                             {1, 1},
                             {3, 1},
                             {1, 4096},
                             {0, 7},
                             {4, 1000}}) {
    const std::vector<std::vector<float>> expected = whole.run(b, s);
    EXPECT_TRUE(same_bits(looped.run(b, s), expected)) << b << " x " << s;
    EXPECT_TRUE(same_bits(guarded.run(b, s), expected)) << b << " x " << s;
  }
}

// The longest runs of forward and of backward whose loops are as wanted, by blocks of 256 rows.
template <class Wanted>
std::vector<RowBlocks> longest_runs(const PlanResult& plan, Wanted wanted) {
  const RowLoopFinder finder(plan.program, plan.operands, plan.buffer_numel);
  const Dim rows = parse_dim("b*s");
  const int32_t steps = static_cast<int32_t>(plan.program.steps.size());
  std::vector<RowBlocks> runs;
  for (const bool backward : {false, true}) {
    RowBlocks longest;
    for (int32_t first = 0; first < steps; ++first)
      for (int32_t end = first + 1; end <= steps; ++end) {
        if (finder.is_backward(first) != backward || end - first <= longest.end - longest.first) continue;
        const std::optional<RowLoop> loop = finder.find(first, end, rows);
        if (loop && wanted(*loop)) longest = {first, end, rows, kSumBlockRows};
      }
    if (longest.end > 0) runs.push_back(longest);
  }
  return runs;
}

void expect_bits_of_the_whole(const PlanResult& plan, const Program& loops) {
  EXPECT_EQ(print(parse_program(print(loops))), print(loops));
  Step whole(plan.program, false), looped(loops, false), guarded(loops, true);
  for (const auto& [b, s] : {std::pair<int64_t, int64_t>{8, 256},
                             {9, 128},
                             {3, 512},
                             {2, 1000},
                             {20, 64},
                             {17, 96},
                             {1, 256},
                             {1, 1},
                             {3, 1},
                             {64, 8},
                             {0, 7},
                             {5, 0},
                             {8, 256}}) {
    const std::vector<std::vector<float>> expected = whole.run(b, s);
    EXPECT_TRUE(same_bits(looped.run(b, s), expected)) << b << " x " << s;
    EXPECT_TRUE(same_bits(guarded.run(b, s), expected)) << b << " x " << s;
  }
}

// Blocks of whole batches, where a batch's rows and those that sums go by allow it: else of all rows.
TEST(RowBlocks, OfAttentionAreWholeBatches) {
  const Graph graph = training_graph(kAttention);
  const PlanResult whole = plan(graph);
  PlanOptions options;
  options.row_blocks = longest_runs(whole, [](const RowLoop& loop) { return !loop.batch_rows.is(1); });
  ASSERT_EQ(options.row_blocks.size(), 2u);
  const Program looped = plan(graph, options).program;
  for (const ProgramLoop& loop : looped.loops) EXPECT_GE(loop.batch_rows, 0);
  expect_bits_of_the_whole(whole, looped);
}

// What a loop fills row by row lies where it has read the rows: any run in which one may.
TEST(RowBlocks, FillWhatTheyHaveRead) {
  int taken = 0;
  for (const char* text : {kLayers, kAttention, kTwoReaders}) {
    const Graph graph = training_graph(text);
    const PlanResult whole = plan(graph);
    const RowLoopFinder finder(whole.program, whole.operands, whole.buffer_numel);
    const Dim rows = parse_dim("b*s");
    const int32_t steps = static_cast<int32_t>(whole.program.steps.size());
    const std::vector<std::vector<float>> expected = Step(whole.program, false).run(3, 512);
    for (int32_t first = 0; first < steps; ++first)
      for (int32_t end = first + 1; end <= steps; ++end) {
        const std::optional<RowLoop> loop = finder.find(first, end, rows);
        if (!loop || loop->takes.empty()) continue;
        ++taken;
        PlanOptions options;
        options.row_blocks = {{first, end, rows, kSumBlockRows}};
        EXPECT_TRUE(same_bits(Step(plan(graph, options).program, true).run(3, 512), expected)) << first << " " << end;
      }
  }
  EXPECT_GT(taken, 0);
}

TEST(RowBlocks, LowerThePeakWhereWideValuesMakeIt) {
  const Plans plans;
  Step whole(plans.whole.program, false), looped(plans.looped, false);
  EXPECT_LT(looped.arena_bytes(4, 1000) * 10, whole.arena_bytes(4, 1000) * 9);
}

// Where backward is cut for its caller is decided once the loops stand.
TEST(RowBlocks, StandAcrossCutsOfBackward) {
  PlanOptions often;
  often.first_bucket_bytes = often.bucket_bytes = 4;
  const Plans plans(kTwoProducts), cut(kTwoProducts, often);
  const auto is_across = [&](const RowBlocks& run) {
    const std::vector<ProgramRegion>& regions = cut.whole.program.regions;
    return std::any_of(regions.begin() + 2, regions.end(),
                       [&](const ProgramRegion& each) { return run.first < each.first && each.first < run.end; });
  };
  EXPECT_TRUE(std::any_of(cut.blocks.begin(), cut.blocks.end(), is_across));
  EXPECT_EQ(runs_of(cut), runs_of(plans));
}

// All steps that need much, not only those that set the peak of the plan.
TEST(RowBlocks, AreForeseenWhereNoneSetsThePeak) {
  const Plans plans;
  const std::vector<int64_t> sizes = {4, 1000};
  const std::unique_ptr<Binding> binding = bind_program(plans.whole.program, sizes, {}, false);
  const ForeseenBytes bytes = foresee_row_blocks(plans.whole, *binding, {{"b", 4}, {"s", 1000}}, Prices());
  ASSERT_EQ(bytes.without.size(), plans.whole.program.steps.size());
  ASSERT_EQ(bytes.with.size(), bytes.without.size());
  EXPECT_EQ(*std::max_element(bytes.without.begin(), bytes.without.end()), binding->report.lower_bound_bytes);
  EXPECT_LT(*std::max_element(bytes.with.begin(), bytes.with.end()) * 10,
            *std::max_element(bytes.without.begin(), bytes.without.end()) * 9);
}

// The loss is a mean over all rows.
TEST(RowBlocks, AreRefusedWhereAStepNeedsAllRows) {
  const Graph graph = training_graph();
  const PlanResult whole = plan(graph);
  PlanOptions options;
  options.row_blocks = {{0, static_cast<int32_t>(whole.program.steps.size()), parse_dim("b*s"), 256}};
  try {
    plan(graph, options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("cannot go by blocks of 256 of b*s rows"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace lowtide
