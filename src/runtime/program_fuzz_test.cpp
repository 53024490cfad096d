// Whatever the text of a program says, it is an error or a program that binds.
#include <gtest/gtest.h>

#include <random>

#include "runtime/control_programs.h"

namespace lowtide {
namespace {

std::string damaged(const std::string& text, std::mt19937& random) {
  std::vector<size_t> lines = {0}, digits;
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] == '\n') lines.push_back(i + 1);
    if (text[i] >= '0' && text[i] <= '9') digits.push_back(i);
  }
  auto line = [&](size_t at) { return text.substr(lines[at], text.find('\n', lines[at]) + 1 - lines[at]); };
  std::string changed = text;
  const size_t one = random() % lines.size(), other = random() % lines.size();
  switch (random() % 6) {
    case 0: return changed.erase(lines[one], line(one).size());
    case 1: return changed.insert(lines[one], line(other));
    case 2: return changed.replace(lines[one], line(one).size(), line(other));
    case 3: changed.insert(digits[random() % digits.size()], "-"); return changed;
    default: changed[digits[random() % digits.size()]] = static_cast<char>('0' + random() % 10); return changed;
  }
}

// Kernels trust the attributes of their steps, which session/step_check.h looks at: bound are programs without any.
TEST(ProgramFuzz, ChangedProgramsBindOrAreRefused) {
  std::mt19937 random(3);
  for (const char* text : {kLoop, kCount, kNumber, kPending}) {
    int passed = 0, refused = 0;
    for (int i = 0; i < 1000; ++i) {
      std::string changed = damaged(text, random);
      if (random() % 3 == 0) changed = damaged(changed, random);
      try {
        Program program = written(changed);
        EXPECT_EQ(print(parse_program(print(program))), print(program));
        set_lifetimes(program);
        check(program);
        if (changed.find("attr ") == std::string::npos) {
          Executor executor(program, {.guard = i % 2 == 0});
          executor.memory(std::vector<int64_t>(program.symbols.size(), 40));
        }
        ++passed;
      } catch (const Error&) {
        ++refused;
      }
    }
    EXPECT_GT(passed, 20) << text;
    EXPECT_GT(refused, 200) << text;
  }
}

// A walk over an operand of more dims than its result, found by the fuzzer: the one that is nowhere has none.
TEST(ProgramFuzz, AStepWhoseResultHasNoPlaceIsRefused) {
  std::string text = kNumber;
  const std::string step = "\"reference.Neg\" [0] [1]";
  text.replace(text.find(step), step.size(), "\"reference.Neg\" [0] [-1]");
  Program program = written(text);
  set_lifetimes(program);
  try {
    check(program);
    Executor executor(program, {});
    executor.memory(std::vector<int64_t>(program.symbols.size(), 40));
    FAIL() << "bound";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidProgram) << error.what();
    EXPECT_NE(std::string(error.what()).find("whose result has no place"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace lowtide
