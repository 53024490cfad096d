#include "passes/propagate_casts.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "ir/parse.h"
#include "ir/print.h"

namespace lowtide {
namespace {

// bf16 → f32, an op, f32 → bf16.
Graph around(const std::string& op) {
  return parse("graph @g(%x: bf16[n] input, %z: bf16[n] input) {\n %a: f32[n] = Cast(to=f32) %x\n" +
               std::string(" %b: f32[n] = Cast(to=f32) %z\n %c: f32[n] = ") + op +
               "\n %y: bf16[n] = Cast(to=bf16) %c\n return %y output\n}");
}

bool runs_narrow(const std::string& op, int level, std::vector<std::string> allow = {}) {
  Graph graph = around(op);
  PassOptions options;
  options.cast_level = level;
  options.cast_allow = std::move(allow);
  const bool changed = propagate_casts(graph, options);
  EXPECT_EQ(changed, print(graph) != print(around(op)));
  return changed;
}

TEST(PropagateCasts, LevelsAddOps) {
  EXPECT_FALSE(runs_narrow("Tanh %a", 0));
  EXPECT_TRUE(runs_narrow("Tanh %a", 1));
  EXPECT_TRUE(runs_narrow("Tanh %a", 2));
  EXPECT_FALSE(runs_narrow("Add %a, %b", 1));
  EXPECT_TRUE(runs_narrow("Add %a, %b", 2));
  EXPECT_FALSE(runs_narrow("Exp %a", 2));
}

TEST(PropagateCasts, UsersAllowMoreOps) {
  EXPECT_TRUE(runs_narrow("Exp %a", 0, {"Exp"}));
  EXPECT_FALSE(runs_narrow("Tanh %a", 0, {"Exp"}));
}

TEST(PropagateCasts, RefusesWhatItCannotRead) {
  const auto message = [](int level, std::vector<std::string> allow) -> std::string {
    try {
      runs_narrow("Tanh %a", level, std::move(allow));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message(3, {}).find("level of cast propagation is 3, expected 0, 1 or 2"), std::string::npos);
  EXPECT_NE(message(0, {"Tahn"}).find("'Tahn', which is no op"), std::string::npos);
}

}  // namespace
}  // namespace lowtide
