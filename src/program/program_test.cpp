#include "program/program.h"

#include <gtest/gtest.h>

#include <random>

#include "base/check.h"
#include "base/size_code.h"

namespace lowtide {
namespace {

// y = kernel(x) over a symbolic batch, with a gradient.
Program small_program() {
  Program p;
  p.name = "small";
  p.symbols = {{"batch", 0, 0}};
  p.symbol_low = {1};
  p.symbol_high = {1024};
  p.expressions = {{kSizePush, 0}, {kSizePush, 1}, {kSizeSymbol, 0}, {kSizeSymbol, 0, kSizePush, 4, kSizeMul}};
  p.inputs = {{"x", DType::kF32, {2}, {1}, true, true}};
  p.gradient_inputs = {{"dy", DType::kF32, {2}, {1}, false, true}};
  p.gradient_outputs = {0};
  p.buffers = {{"x", BufferKind::kCaller, 3, 0, 2, 0},
               {"y", BufferKind::kOutput, 3, 0, 0, 0},
               {"dy", BufferKind::kCaller, 3, 1, 1, -1},
               {"dx \"quoted\"\n", BufferKind::kGradient, 3, 1, 2, 0}};
  for (int32_t buffer = 0; buffer < 4; ++buffer) p.operands.push_back({buffer, DType::kF32, 0, {2}, {1}});
  ProgramStep forward{
      StepKind::kKernel, "reference.relu", {0}, {1}, {{"alpha", 0.1}, {"axes", std::vector<int64_t>{1, 2}}}, -1, "", 0,
      "Relu (m, a.py:3)"};
  ProgramStep backward{
      StepKind::kKernel, "reference.relu_grad", {2, -1}, {3}, {{"mode", std::string("none")}}, -1, "", 0, "ReluGrad"};
  ProgramStep emit{StepKind::kEmit, "", {3}, {}, {}, 0, "", 0, "gradient of x"};
  p.steps = {forward, backward, emit};
  p.regions = {{"forward", 0, 1, {}}, {"backward", 1, 3, {0}}};
  p.outputs = {{"y", 1, false}};
  p.gradients = {3};
  p.gradient_targets = {0};
  p.constants = std::string("\x00\x01\xff", 3);
  p.constants.resize(64);
  p.pack_order = {0};
  return p;
}

TEST(ProgramText, PrintsAndParsesBack) {
  const std::string text = print(small_program());
  EXPECT_EQ(print(parse_program(text)), text);
}

TEST(ProgramText, AnotherFormIsRefusedByItsVersion) {
  std::string text = print(small_program());
  ASSERT_EQ(text.rfind("lowtide program 2 ", 0), 0u);
  text[std::string_view("lowtide program ").size()] = '1';
  try {
    parse_program(text);
    FAIL() << "parsed";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidProgram);
    EXPECT_STREQ(error.what(), "a program of version 1, this build reads version 2");
  }
}

void expect_invalid(const Program& program, const std::string& culprit) {
  try {
    check(program);
    FAIL() << "passed: " << culprit;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidProgram);
    EXPECT_NE(std::string(error.what()).find(culprit), std::string::npos) << error.what();
  }
}

TEST(ProgramCheck, NamesTheCulprit) {
  check(small_program());
  Program p = small_program();
  p.operands[1].buffer = 9;
  expect_invalid(p, "operand's buffer 9 of 4");
  p = small_program();
  p.steps[1].inputs[0] = 77;
  expect_invalid(p, "step's operand 77");
  p = small_program();
  p.buffers[3].first = 2;
  expect_invalid(p, "touches dx");
  p = small_program();
  p.expressions[2] = {kSizeSymbol, 4};
  expect_invalid(p, "symbol 4 of 1");
  p = small_program();
  p.expressions[2] = {kSizeAdd};
  expect_invalid(p, "too few operands");
  p = small_program();
  p.regions[1].end = 8;
  expect_invalid(p, "the region backward has the steps 1 to 8 of 3");
  p = small_program();
  p.regions.pop_back();
  expect_invalid(p, "the regions end at step 1 of 3");
  p = small_program();
  p.regions[1].gradients = {};
  expect_invalid(p, "no region hands out gradient 0");
  p = small_program();
  p.regions[1].gradients = {0, 0};
  expect_invalid(p, "the region backward cannot hand out gradient 0");
  // Before its step has run.
  p = small_program();
  p.regions = {{"forward", 0, 1, {}}, {"backward", 1, 2, {0}}, {"rest", 2, 3, {}}};
  expect_invalid(p, "the region backward cannot hand out gradient 0");
  p = small_program();
  p.steps[0].attrs.set("axes", std::vector<int64_t>{99});
  expect_invalid(p, "attribute's expression 99");
}

TEST(ProgramText, DamageIsAnErrorAndNeverACrash) {
  const std::string text = print(small_program());
  std::mt19937 random(7);
  int refused = 0;
  constexpr int kRuns = 3000;
  for (int run = 0; run < kRuns; ++run) {
    std::string damaged = text;
    const size_t at = random() % damaged.size();
    switch (random() % 3) {
      case 0: damaged[at] = static_cast<char>(random() % 128); break;
      case 1: damaged.erase(at, 1 + random() % 20); break;
      default: damaged.insert(at, damaged.substr(random() % damaged.size(), random() % 30));
    }
    try {
      parse_program(damaged);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidProgram);
      ++refused;
    }
  }
  // The few that pass are changes that change nothing (a space for a line end).
  EXPECT_GT(refused, kRuns * 95 / 100);
}

}  // namespace
}  // namespace lowtide
