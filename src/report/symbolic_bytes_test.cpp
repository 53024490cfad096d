#include "report/symbolic_bytes.h"

#include <gtest/gtest.h>

#include <random>

namespace lowtide {
namespace {

// The texts of ORTModule's plan table.
TEST(SymbolicBytes, ReadsLikeOrtmodules) {
  const char* const cases[][2] = {
      {"640*b*s**2", "640.0*b*s**2"},
      {"b*s*(384*s - 64)", "b*s*(384.0*s - 64.0)"},
      {"128*b*s*(s - 1)", "128.0*b*s*(s - 1)"},
      {"b*(122880*s - 20480)", "b*(122880.0*s - 20480.0)"},
      {"25600*b*s", "25600.0*b*s"},
      {"5120*b*(s - 1)", "5120.0*b*(s - 1)"},
      {"4*b*s", "4.0*b*s"},
      {"4096", "4096.0"},
      {"0", "0.0"},
      {"b*s", "1.0*b*s"},
      {"b*s + b", "1.0*b*(s + 1)"},
      {"4*b + 8", "4.0*b + 8.0"},
      {"4*b + 4*s", "4.0*(b + s)"},
      {"b**2*s**2 + 3*b**2*s + b**3", "b**2*(1.0*s**2 + 3.0*s + 1.0*b)"},
      {"8 - 4*b", "-4.0*b + 8.0"},
  };
  for (const auto& [size, expected] : cases) EXPECT_EQ(symbolic_bytes(parse_dim(size)), expected) << size;
}

TEST(SymbolicBytes, WritesPythonForQuotientsAndExtremes) {
  const char* const cases[][2] = {
      {"4*(b//s)", "4.0*(b//s)"},
      {"4*b*((s + 1)//2)", "4.0*b*((s + 1)//2)"},
      {"2*(b % 8)", "2.0*(b%8)"},
      {"4*min(b, s)", "4.0*Min(b, s)"},
      {"4*max(b*s - b, 1)**2", "4.0*Max(1, b*(s - 1))**2"},
      {"4*b*(s//2) - 4*b", "4.0*b*((s//2) - 1)"},
  };
  for (const auto& [size, expected] : cases) EXPECT_EQ(symbolic_bytes(parse_dim(size)), expected) << size;
}

TEST(SymbolicSize, WritesIntegers) {
  EXPECT_EQ(symbolic_size(parse_dim("b*s - b")), "b*(s - 1)");
  EXPECT_EQ(symbolic_size(parse_dim("s - 1")), "s - 1");
  EXPECT_EQ(symbolic_size(parse_dim("s//2")), "s//2");
  EXPECT_EQ(symbolic_size(parse_dim("3 - s")), "-s + 3");
  EXPECT_EQ(symbolic_shape({parse_dim("b"), Dim(16), parse_dim("s - 1")}), "b x 16 x s - 1 x ");
  EXPECT_EQ(symbolic_shape({}), "");
}

TEST(WithCommas, GroupsThousands) {
  const std::pair<int64_t, const char*> cases[] = {
      {0, "0"}, {999, "999"}, {1000, "1,000"}, {134217728, "134,217,728"}, {-123456, "-123,456"}, {-1234, "-1,234"}};
  for (const auto& [number, expected] : cases) EXPECT_EQ(with_commas(number), expected);
}

// In the words of a graph's text.
std::string as_size(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {{".0", ""}, {"Min(", "min("}, {"Max(", "max("}};
  for (const auto& [from, to] : kWords)
    for (size_t at; (at = text.find(from)) != std::string::npos;) text.replace(at, from.size(), to);
  return text;
}

// Whatever the form, the value stays: without the ".0" the text reads back as the same size.
TEST(SymbolicBytes, KeepsTheValue) {
  std::mt19937 random(11);
  const Dim symbols[] = {Dim::symbol("a"), Dim::symbol("b"), Dim::symbol("c")};
  auto draw = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  auto any = [&] { return symbols[random() % 3] * draw(1, 3) + draw(-2, 2); };
  for (int run = 0; run < 500; ++run) {
    Dim dim = draw(-3, 3);
    for (int64_t term = draw(1, 4); term > 0; --term) {
      Dim product = draw(-2, 2) * (run % 3 == 0 ? 64 : 1);
      for (int64_t factor = draw(1, 3); factor > 0; --factor) {
        switch (draw(0, 6)) {
          case 0: product = product * floordiv(any(), draw(2, 4)); break;
          case 1: product = product * mod(any(), draw(2, 4)); break;
          case 2: product = product * min(any(), any()); break;
          case 3: product = product * max(any(), any()); break;
          default: product = product * symbols[random() % 3];
        }
      }
      dim = dim + product;
    }
    const std::string bytes = symbolic_bytes(dim), size = symbolic_size(dim);
    EXPECT_NE(bytes.find(".0"), std::string::npos) << bytes;
    EXPECT_EQ(parse_dim(as_size(bytes)), dim) << bytes;
    EXPECT_EQ(parse_dim(as_size(size)), dim) << size;
  }
}

}  // namespace
}  // namespace lowtide
