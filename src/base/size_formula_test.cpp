#include "base/size_formula.h"

#include <gtest/gtest.h>

#include "base/check.h"

namespace lowtide {
namespace {

using Number = SizeFormula::Number;

const std::vector<std::string> kNames{"a", "b", "min_dim0", "not_dim1"};
const std::vector<int64_t> kSizes{7, 3, 0, 12};

constexpr int64_t kLargest = INT64_MAX;

TEST(SizeFormula, GivesWhatPythonGives) {
  const struct {
    const char* text;
    Number expected;
  } kCases[] = {
      {"12", int64_t{12}},
      {"a + b*2 - 1", int64_t{12}},
      {"-a//2", int64_t{-4}},
      {"(-a)%b", int64_t{2}},
      {"-a**2", int64_t{-49}},
      {"2**b**2", int64_t{512}},
      {"a//-2", int64_t{-4}},
      {"7 % -3", int64_t{-2}},
      {"a/2", 3.5},
      {"0.5*a", 3.5},
      {"1.5e1 + a", 22.0},
      {"min(a, b, not_dim1) + max(1, min_dim0)", int64_t{4}},
      {"math.floor(a/2) + math.ceil(a/2)", int64_t{7}},
      {"math.trunc(-a/2)", int64_t{-3}},
      {"int(2.75) + abs(-3)", int64_t{5}},
      {"round(a/2)", int64_t{4}},
      {"round(2.5)", int64_t{2}},
      {"math.sqrt(not_dim1*b)", 6.0},
      {"float(a)", 7.0},
      {"a == 7 and b != 7", int64_t{1}},
      {"a < 7 or a <= 6 or a > 7 or a >= 8", int64_t{0}},
      {"not a == 7", int64_t{0}},
      {"not (a == 7 and not False)", int64_t{0}},
      {"a/2 == 3.5 and True", int64_t{1}},
      {"min_dim0 == 0 or 10//min_dim0 > 2", int64_t{1}},
      {"min_dim0 != 0 and 10//min_dim0 > 2", int64_t{0}},
      {"a == 1 and b == 1 or a == 7", int64_t{1}},
      {"9223372036854775807 - a", kLargest - 7},
      {"(-1)**9223372036854775807", int64_t{-1}},
  };
  for (const auto& [text, expected] : kCases) {
    SCOPED_TRACE(text);
    const Number found = SizeFormula(text, kNames).value(kSizes);
    EXPECT_EQ(found, expected);
  }
}

TEST(SizeFormula, WhatHasNoNumberDoesNotHold) {
  for (const char* text : {"a//min_dim0 >= 0", "a % min_dim0 == 0", "a/min_dim0 > 1", "9223372036854775807 + a > 0",
                           "a**99 > 0", "9223372036854775807*2 > 0", "-9223372036854775807 - 2 < 0", "a**-1 > 0",
                           "math.sqrt(-a) >= 0", "math.floor(1e300) > 0", "1e300*1e300 > 0",
                           "9007199254740993 < 0.5 or True", "a/2 % 2 == 0", "not 1//min_dim0"}) {
    SCOPED_TRACE(text);
    const SizeFormula formula(text, kNames);
    EXPECT_FALSE(formula.holds(kSizes));
    try {
      formula.value(kSizes);
      ADD_FAILURE() << "a number";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    }
  }
}

TEST(SizeFormula, IsSizesNumbersAndTheirOperatorsOnly) {
  const std::string deep = std::string(100000, '('), minus = std::string(100000, '-') + "a";
  std::string nots;
  for (int i = 0; i < 1000; ++i) nots += "not ";
  for (const std::string& text : {std::string("[c for c in ().__class__.__base__.__subclasses__()]"),
                                  std::string("a.__class__"),
                                  std::string("__import__('os')"),
                                  std::string("c"),
                                  std::string("a b"),
                                  std::string("a //b # x"),
                                  std::string("a // b"),
                                  std::string("a//"),
                                  std::string("1 < a < 9"),
                                  std::string("()"),
                                  std::string(""),
                                  std::string("min()"),
                                  std::string("min"),
                                  std::string("abs(a, b)"),
                                  std::string("math.exp(a)"),
                                  std::string("9223372036854775808"),
                                  std::string("1e999"),
                                  std::string("a if b else 1"),
                                  std::string("+a"),
                                  std::string("a\0b", 3),
                                  std::string("\xff"),
                                  deep,
                                  minus,
                                  nots + "a",
                                  std::string(70000, ' ') + "a"}) {
    SCOPED_TRACE(text.substr(0, 60));
    try {
      SizeFormula formula(text, kNames);
      ADD_FAILURE() << "taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidGraph);
    }
  }
}

TEST(SizeFormula, LongChainsAreNoDepth) {
  std::string sum = "a", both = "a == 7";
  for (int i = 0; i < 5000; ++i) sum += " + a", both += " and a > 1";
  EXPECT_EQ(SizeFormula(sum, kNames).value(kSizes), Number(int64_t{7 * 5001}));
  EXPECT_TRUE(SizeFormula(both, kNames).holds(kSizes));
}

}  // namespace
}  // namespace lowtide
