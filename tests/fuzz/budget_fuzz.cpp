// A simulated step is the plan: of graphs with random choices of what to keep, the simulated peak is what the rewritten
// graph needs when it is planned and packed, and the simulated time what its nodes take. LOWTIDE_FUZZ_SEED and
// LOWTIDE_FUZZ_RUNS (default 1 and 12) choose another or longer search.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/check.h"
#include "ir/parse.h"
#include "memory/budget/recipes.h"
#include "pack/random.h"
#include "session/stages.h"

namespace lowtide::fuzz {
namespace {

// Blocks of norm, linear, pointwise, a choice by a mask, linear, dropout, softmax and a residual.
std::string draw_graph(SplitMix& random) {
  std::string inputs = "%x: f32[N, 64] input", nodes;
  const auto parameter = [&](const std::string& name, const std::string& sizes) {
    inputs += concat(", %", name, ": f32[", sizes, "] param");
    return "%" + name;
  };
  std::string x = "x";
  const int blocks = random.between(2, 6);
  for (int i = 0; i < blocks; ++i) {
    const int wide = 64 * random.between(1, 6);
    const std::string g = parameter(concat("g", i), "64"), b = parameter(concat("b", i), "64");
    nodes += concat("  %n", i, ": f32[N, 64], %m", i, ": f32[N], %r", i,
                    ": f32[N] = LayerNormalization(axis=1, epsilon=1e-05) %", x, ", ", g, ", ", b, "\n");
    const std::string u = parameter(concat("u", i), concat(wide, ", 64")), c = parameter(concat("c", i), concat(wide));
    nodes += concat("  %h", i, ": f32[N, ", wide, "] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %n", i,
                    ", ", u, ", ", c, "\n");
    const char* const ops[] = {"Gelu", "Tanh", "Sigmoid", "Exp"};
    nodes += concat("  %a", i, ": f32[N, ", wide, "] = ", ops[random.below(4)], " %h", i, "\n");
    std::string inner = concat("a", i);
    if (random.chance(50)) {
      nodes += concat("  %k", i, ": f32[N, ", wide, "] = Mul %a", i, ", %h", i, "\n");
      inner = concat("k", i);
    }
    if (random.chance(50)) {
      nodes += concat("  %q", i, ": bool[N, ", wide, "] = Greater %", inner, ", %h", i, "\n");
      nodes += concat("  %w", i, ": f32[N, ", wide, "] = Where %q", i, ", %", inner, ", %h", i, "\n");
      inner = concat("w", i);
    }
    const std::string d = parameter(concat("d", i), concat("64, ", wide));
    nodes += concat("  %o", i, ": f32[N, 64] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %", inner, ", ", d,
                    "\n");
    std::string out = concat("o", i);
    if (random.chance(60)) {
      nodes += concat("  %p", i, ": f32[N, 64] = Dropout(ratio=0.1, stream=", i, ") %o", i, "\n");
      out = concat("p", i);
    }
    if (random.chance(40)) {
      nodes += concat("  %s", i, ": f32[N, 64] = Softmax(axis=1) %", out, "\n");
      out = concat("s", i);
    }
    nodes += concat("  %x", i, ": f32[N, 64] = Add %", x, ", %", out, "\n");
    x = concat("x", i);
  }
  return concat("graph @drawn(", inputs, ") {\n", nodes, "  return %", x, " output\n}\n");
}

uint64_t number_from(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(BudgetFuzz, ASimulatedStepIsThePlanOfTheRewrittenGraph) {
  const uint64_t first = number_from("LOWTIDE_FUZZ_SEED", 1), runs = number_from("LOWTIDE_FUZZ_RUNS", 12);
  const int64_t rows = 256;
  int lower = 0;
  size_t unpacked = 0;
  for (uint64_t seed = first; seed < first + runs; ++seed) {
    SplitMix random(seed);
    const std::string text = draw_graph(random);
    SCOPED_TRACE(testing::Message() << "seed " << seed << "\n" << text);
    const SessionOptions session_options;
    const Stages stages(parse(text), session_options);
    const MemoryOptimizer& optimizer = *stages.memory_optimizer;
    const MemoryContext& context = optimizer.context();
    const StashAnalysis stash(stages.before_memory, stages.plan_before);
    const DimValues dims = {{"N", rows}};
    const auto binding = bind_program(stages.plan_before.program, {rows}, {}, false);
    const StepModel model =
        model_step(context, stash, stages.plan_before, *binding, dims, stages.prices, optimizer.defaults());
    const int64_t everything = simulate(model, Kept(model.values.size(), Keep::kWhole)).peak_bytes;
    for (const uint32_t percent : {100u, 80u, 50u, 20u, 0u}) {
      SCOPED_TRACE(testing::Message() << percent << " % kept");
      Kept kept(model.values.size());
      for (size_t i = 0; i < kept.size(); ++i)
        if (!model.values[i].may_run_again || random.chance(percent))
          kept[i] = model.values[i].packed_bytes > 0 && random.chance(50) ? Keep::kPacked : Keep::kWhole;
      const SimulatedStep step = simulate(model, kept);
      unpacked += step.packed.size();
      const Graph rewritten = optimizer.rewrite(recipes_of(model, kept, context, stash));
      const PlanResult planned = plan(rewritten, {});
      const int64_t packed = bind_program(planned.program, {rows}, {}, false)->report.arena_bytes;
      EXPECT_NEAR(static_cast<double>(step.peak_bytes), static_cast<double>(packed),
                  0.01 * static_cast<double>(packed));
      // Outputs that nobody reads are not made: the simulator takes no account of what that saves.
      const double predicted = predicted_milliseconds(rewritten, stages.prices, dims);
      EXPECT_NEAR(step.milliseconds, predicted, 0.01 * predicted);
      lower += packed < everything;
    }
  }
  EXPECT_GT(lower, 0);
  EXPECT_GT(unpacked, 0u);
}

}  // namespace
}  // namespace lowtide::fuzz
