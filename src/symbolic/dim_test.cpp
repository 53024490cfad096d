#include "symbolic/dim.h"

#include <gtest/gtest.h>

#include <random>

#include "base/check.h"
#include "base/size_code.h"

namespace lowtide {
namespace {

const std::vector<std::string> kSymbols = {"a", "b", "c"};

// A random size and, beside it, how plain integers compute it at `values`.
struct Sample {
  Dim dim;
  int64_t value;
};

class Generator {
 public:
  explicit Generator(unsigned seed) : random_(seed) {
    for (const std::string& symbol : kSymbols) values_[symbol] = pick(1, 40);
  }

  int64_t pick(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  const DimValues& values() const { return values_; }

  Sample sample(int depth) {
    const int64_t kind = depth == 0 ? pick(0, 1) : pick(0, 9);
    if (kind == 0) {
      const int64_t value = pick(-6, 12);
      return {Dim(value), value};
    }
    if (kind <= 2) {
      const std::string& symbol = kSymbols[static_cast<size_t>(pick(0, 2))];
      return {Dim::symbol(symbol), values_.at(symbol)};
    }
    const Sample x = sample(depth - 1);
    if (kind == 3 || kind == 4) {
      const int64_t d = pick(1, 6);
      const int64_t rest = (x.value % d + d) % d;
      if (kind == 3) return {floordiv(x.dim, Dim(d)), (x.value - rest) / d};
      return {mod(x.dim, Dim(d)), rest};
    }
    const Sample y = sample(depth - 1);
    switch (kind) {
      case 5: return {x.dim + y.dim, x.value + y.value};
      case 6: return {x.dim - y.dim, x.value - y.value};
      case 7: return {x.dim * y.dim, x.value * y.value};
      case 8: return {min(x.dim, y.dim), std::min(x.value, y.value)};
      default: return {max(x.dim, y.dim), std::max(x.value, y.value)};
    }
  }

 private:
  std::mt19937 random_;
  DimValues values_;
};

TEST(Dim, CanonicalFormsMeet) {
  const Dim s = Dim::symbol("s"), t = Dim::symbol("t");
  EXPECT_EQ(s * 2 + s, 3 * s);
  EXPECT_EQ((s + t) * (s - t), s * s - t * t);
  EXPECT_EQ(s - s, Dim(0));
  EXPECT_EQ(floordiv(4 * s, 2), 2 * s);
  EXPECT_EQ(floordiv(s * t + t, s + 1), t);
  EXPECT_EQ(floordiv(4 * s + 3, 4), s);
  EXPECT_EQ(floordiv(s - 1, 2) + 1, floordiv(s + 1, 2));
  EXPECT_EQ(floordiv(floordiv(s - 1, 2), 2) + 1, floordiv(s + 3, 4));
  EXPECT_EQ(mod(6 * s + 5, 3), Dim(2));
  EXPECT_EQ(min(s, s + 1), s);
  EXPECT_EQ(max(s, s + 1), s + 1);
  EXPECT_EQ(min(s, t), min(t, s));
  EXPECT_NE(s, t);
  EXPECT_NE(floordiv(s, 2) * 2, s);
}

TEST(Dim, PrintsReadably) {
  const Dim s = Dim::symbol("s0"), t = Dim::symbol("s1");
  EXPECT_EQ(to_string(s * t - 4 * t + 2), "s0*s1 - 4*s1 + 2");
  EXPECT_EQ(to_string(s * s), "s0**2");
  EXPECT_EQ(to_string(floordiv(s + 1, 2)), "(s0 + 1)//2");
  EXPECT_EQ(to_string(mod(s, 8)), "s0 % 8");
  EXPECT_EQ(to_string(min(s, 2 * t)), "min(s0, 2*s1)");
  EXPECT_EQ(to_string(2 * floordiv(s, 3) * t), "2*s1*(s0//3)");
  EXPECT_EQ(to_string(-floordiv(s, 3)), "-(s0//3)");
  EXPECT_EQ(to_string(4 - s), "-s0 + 4");
  EXPECT_EQ(to_string(Dim(std::numeric_limits<int64_t>::min())), "-9223372036854775808");
}

TEST(Dim, RandomSizesAgreeWithPlainIntegersAndReadBack) {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    Generator generator(seed);
    const Sample x = generator.sample(4);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << to_string(x.dim));
    EXPECT_EQ(evaluate(x.dim, generator.values()), x.value);
    const Dim again = parse_dim(to_string(x.dim));
    EXPECT_EQ(again, x.dim) << to_string(again);
    std::vector<int64_t> table;
    for (const std::string& symbol : kSymbols) table.push_back(generator.values().at(symbol));
    EXPECT_EQ(run_size_code(compile_dim(x.dim, kSymbols), table), x.value);
    DimRanges ranges;
    for (const auto& [symbol, value] : generator.values())
      ranges[symbol] = {value - generator.pick(0, 3), value + generator.pick(0, 3)};
    const DimRange range = range_of(x.dim, ranges);
    EXPECT_LE(range.low, x.value);
    EXPECT_GE(range.high, x.value);
    std::map<std::string, Dim, std::less<>> numbers;
    for (const auto& [symbol, value] : generator.values()) numbers[symbol] = Dim(value);
    EXPECT_EQ(substitute(x.dim, numbers), Dim(x.value));
  }
}

TEST(Dim, RingLawsHold) {
  for (unsigned seed = 0; seed < 1000; ++seed) {
    Generator generator(seed);
    const Dim x = generator.sample(2).dim, y = generator.sample(2).dim, z = generator.sample(2).dim;
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << x << " | " << y << " | " << z);
    EXPECT_EQ(x + y, y + x);
    EXPECT_EQ(x * y, y * x);
    EXPECT_EQ((x + y) + z, x + (y + z));
    EXPECT_EQ((x * y) * z, x * (y * z));
    EXPECT_EQ(x * (y + z), x * y + x * z);
    EXPECT_EQ(x + (-x), Dim(0));
    if (!y.is(0)) {
      EXPECT_EQ(floordiv(x * y, y), x);
    }
    EXPECT_EQ(x < y, !(y < x) && !(x == y));
  }
}

TEST(Dim, RangesOfKnownSymbols) {
  const Dim s = Dim::symbol("s"), t = Dim::symbol("t");
  const DimRanges ranges = {{"s", {2, 10}}};
  EXPECT_EQ(range_of(s * 3 - 1, ranges), (DimRange{5, 29}));
  EXPECT_EQ(range_of(floordiv(s, 4), ranges), (DimRange{0, 2}));
  EXPECT_EQ(range_of(mod(s, 4), ranges), (DimRange{0, 3}));
  EXPECT_EQ(range_of(t, ranges).high, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(range_of(t * s + 1, ranges), (DimRange{1, std::numeric_limits<int64_t>::max()}));
  EXPECT_EQ(range_of(min(t, s), ranges), (DimRange{0, 10}));
}

TEST(Dim, RangesSimplify) {
  const Dim s = Dim::symbol("s"), t = Dim::symbol("t");
  const DimRanges ranges = {{"s", {2, 64}}, {"t", {0, 1}}};
  EXPECT_EQ(simplify(1 - max(0, 1 - s), ranges), Dim(1));
  EXPECT_EQ(simplify(64 - max(0, 64 - s), ranges), s);
  EXPECT_EQ(simplify(min(s, 100) * mod(t, s) + floordiv(t, s), ranges), s * t);
  EXPECT_EQ(simplify(max(s, 3) + mod(s, 8), ranges), max(s, 3) + mod(s, 8));
}

// What a text that is no size is answered with.
std::string message_of(std::string_view text) {
  try {
    parse_dim(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidGraph);
    return error.what();
  }
  return "no error";
}

TEST(Dim, BadTextsNameThePlace) {
  EXPECT_EQ(message_of("s +"), "1:4: expected a size, found the end of the text");
  EXPECT_EQ(message_of("(s + 1"), "1:7: expected ')', found the end of the text");
  EXPECT_EQ(message_of("s t"), "1:3: expected the end of the size, found 't'");
  EXPECT_EQ(message_of("99999999999999999999"), "1:1: expected a number below 2**63, found a larger one");
  EXPECT_EQ(message_of("s//0"), "1:2: division of the size s by zero");
  EXPECT_EQ(message_of("s**99"), "1:2: expected a power in [1, 16], found 99");
  EXPECT_EQ(message_of("f32"), "1:1: expected a size, found the reserved word 'f32'");
  EXPECT_NE(message_of("9223372036854775807*s*2").find("leaves 64 bits"), std::string::npos);
  EXPECT_NE(message_of(std::string(1000, '(')).find("nested more than"), std::string::npos);
  EXPECT_NE(message_of(std::string(1000, '-')).find("nested more than"), std::string::npos);
}

TEST(Dim, AMissingValueIsNamed) {
  try {
    evaluate(Dim::symbol("batch") + 1, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_STREQ(error.what(), "no value for the size batch");
  }
}

}  // namespace
}  // namespace lowtide
