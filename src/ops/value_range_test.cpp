#include "ops/value_range.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "ir/parse.h"

namespace lowtide {
namespace {

constexpr int64_t kLowest = std::numeric_limits<int64_t>::min();
constexpr int64_t kHighest = std::numeric_limits<int64_t>::max();
constexpr DimRange kAll = {kLowest, kHighest};

struct ValueRangeCase {
  const char* node;
  DimRange expected;
};

// Before each node stand: %p in [0, 9], %q in [-3, 4], %b bool, %f float, %in an input of i64, %c in [2, 2].
constexpr char kBefore[] = R"(
graph @ranges(%f: f32[n, 10] input, %img: f32[n, 3, 16, 8] input, %in: i64[n] input, %wide: f32[n, w] input,
              %bytes: u8[n] input) where n in [1, 64], w in [1, inf], z in [0, 9] {
  %p: i64[n] = ArgMax(axis=1, keepdims=false) %f
  %q7: i64[8] = Range(dtype=i64, int_start=-3, int_step=1, numel=8)
  %q: i64[n] = Gather(axis=0) %q7, %in
  %b: bool[n] = Less %in, %p
  %c: i64[] = Constant(dtype=i64, int_value=2)
  )";

constexpr ValueRangeCase kValueRangeCases[] = {
    {"%y: i64[n] = Identity %in", kAll},
    {"%y: u8[n] = Identity %bytes", {0, 255}},
    {"%y: bool[n] = Not %b", {0, 1}},
    {"%y: i64[n, 10] = Cast(to=i64) %f", kAll},
    {"%y: i16[n, 10] = Cast(to=i16) %f", {-32768, 32767}},
    // creation
    {"%y: i64[] = Constant(dtype=i64, int_value=7)", {7, 7}},
    {"%y: i64[] = Constant(dtype=i64, int_value=n - 1)", {0, 63}},
    {"%y: i64[n] = ConstantOfShape(dtype=i64, int_value=-5, shape=[n])", {-5, -5}},
    {"%y: i64[n] = Range(dtype=i64, int_start=0, int_step=1, numel=n)", {0, 63}},
    {"%y: i64[n] = Range(dtype=i64, int_start=n - 1, int_step=-1, numel=n)", {0, 63}},
    {"%y: i64[w] = Range(dtype=i64, int_start=0, int_step=1, numel=w)", kAll},
    // indices
    {"%y: i64[n] = Identity %p", {0, 9}},
    {"%y: i64[n] = ArgMin(axis=1, keepdims=false) %wide", kAll},
    {"%v: f32[n, 10], %y: i64[n, 10] = Sort(axis=1, descending=true) %f", {0, 9}},
    {"%v: f32[n, 2], %y: i64[n, 2] = TopK(axis=1, k=2, largest=true) %f", {0, 9}},
    {"%v: f32[n, 3, 8, 4], %y: i64[n, 3, 8, 4] = MaxPool(ceil_mode=false, dilations=[1, 1], kernel_shape=[2, 2], "
     "pads=[0, 0, 0, 0], strides=[2, 2]) %img",
     {0, 127}},
    {"%v: f32[n, 3, 17, 9], %y: i64[n, 3, 17, 9] = MaxPool(ceil_mode=false, dilations=[1, 1], kernel_shape=[2, 2], "
     "pads=[1, 1, 1, 1], strides=[1, 1]) %img",
     {0, 127}},
    // a window of nothing but padding
    {"%v: f32[n, 3, 19, 11], %y: i64[n, 3, 19, 11] = MaxPool(ceil_mode=false, dilations=[1, 1], kernel_shape=[2, 2], "
     "pads=[2, 2, 2, 2], strides=[1, 1]) %img",
     {-1, 127}},
    // views and moves
    {"%y: i64[2, n] = Expand(shape=[2, n]) %p", {0, 9}},
    {"%y: i64[2*n] = Concat(axis=0) %p, %q", {-3, 9}},
    {"%y: i64[n + 2] = Pad(mode=\"constant\", pads=[1, 1], value=-7.0) %p", {-7, 9}},
    {"%y: i64[n] = Where %b, %p, %q", {-3, 9}},
    // arithmetic
    {"%y: i64[n] = Add %p, %q", {-3, 13}},
    {"%y: i64[n] = Sub %p, %q", {-4, 12}},
    {"%y: i64[n] = Mul %p, %q", {-27, 36}},
    {"%y: i64[n] = Add %in, %c", kAll},
    {"%y: i64[n] = Neg %q", {-4, 3}},
    {"%y: i64[n] = Abs %q", {0, 4}},
    {"%y: i64[n] = Abs %in", kAll},  // of the lowest integer it is the lowest integer
    {"%y: i64[n] = Sign %in", {-1, 1}},
    {"%y: i64[n] = BitwiseNot %q", {-5, 2}},
    {"%y: i64[n] = Relu %q", {0, 4}},
    {"%y: i64[n] = Div %q, %c", {-1, 2}},
    {"%y: i64[n] = FloorDiv %q, %c", {-2, 2}},
    {"%y: i64[n] = FloorDiv %p, %q", kAll},  // divides by zero
    {"%y: i64[n] = Mod %in, %c", {0, 1}},
    {"%y: i64[n] = Mod(fmod=true) %in, %c", {-1, 1}},
    {"%y: i64[n] = Mod(fmod=true) %p, %c", {0, 1}},
    {"%y: i64[n] = Max %in, %p", {0, kHighest}},
    {"%y: i64[n] = Min %p, %q", {-3, 4}},
    {"%y: i64[n] = Clip(max=100.0, min=-2.5) %in", {-2, 100}},
    {"%y: i64[n] = Clip(max=1.0, min=5.0) %in", {1, 1}},
    {"%y: i64[n] = BitwiseAnd %in, %p", {0, 9}},
    {"%y: i64[n] = BitwiseOr %p, %c", {0, 15}},
    {"%y: i64[n] = BitwiseXor %q, %c", kAll},
    // casts and what leaves a dtype
    {"%y: i64[n] = Cast(to=i64) %b", {0, 1}},
    {"%y: i8[n] = Cast(to=i8) %p", {0, 9}},
    {"%y: u8[n] = Cast(to=u8) %q", {0, 255}},
    {"%y: u8[n] = Add %bytes, %bytes", {0, 255}},
    // sums
    {"%k: i64[n] = Cast(to=i64) %b\n  %y: i64[n] = CumSum(axis=0) %k", {0, 64}},
    {"%y: i64[] = ReduceSum(axes=[0], keepdims=false) %q", {-192, 256}},
    {"%y: i64[] = ReduceMax(axes=[0], keepdims=false) %q", {-3, 4}},
    {"%i: i64[z, 3] = Expand(shape=[z, 3]) %c\n  %y: i64[3] = ReduceMax(axes=[0], keepdims=false) %i",
     kAll},  // of nothing?
    {"%i: i64[z, 3] = Expand(shape=[z, 3]) %c\n  %y: i64[z] = ReduceMax(axes=[1], keepdims=false) %i", {2, 2}},
    {"%y: i64[n] = UnpackBits(bits=4, low=-1, shape=[n], to=i64) %bytes", {-1, 14}},
};

TEST(ValueRange, IsWhatTheGraphProves) {
  for (const ValueRangeCase& c : kValueRangeCases) {
    const Graph graph = parse(concat(kBefore, c.node, "\n  return %y output\n}"));
    EXPECT_EQ(value_range(graph, graph.outputs()[0].value), c.expected)
        << c.node << ": [" << value_range(graph, graph.outputs()[0].value).low << ", "
        << value_range(graph, graph.outputs()[0].value).high << "]";
  }
}

// Each value is twice the sum of the one before: a graph of many paths, and of a depth where we stop looking.
TEST(ValueRange, LongChainsEnd) {
  std::string text = "graph @chain(%x: bool[4] input) {\n  %v0: i64[4] = Cast(to=i64) %x\n";
  for (int i = 1; i <= 60; ++i) text += concat("  %v", i, ": i64[4] = Max %v", i - 1, ", %v", i - 1, "\n");
  EXPECT_EQ(value_range(parse(text + "  return %v60 output\n}"), ValueId{61}), (DimRange{0, 1}));
  for (int i = 61; i <= 400; ++i) text += concat("  %v", i, ": i64[4] = Max %v", i - 1, ", %v", i - 1, "\n");
  EXPECT_EQ(value_range(parse(text + "  return %v400 output\n}"), ValueId{401}), kAll);
}

}  // namespace
}  // namespace lowtide
