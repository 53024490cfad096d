#include "memory/prices.h"

#include <gtest/gtest.h>

#include <chrono>

#include "base/check.h"
#include "ir/parse.h"

namespace lowtide {
namespace {

Graph graph_of(std::string_view inputs, std::string_view nodes) {
  return parse(concat("graph @g(", inputs, ") {\n", nodes, "\n  return\n}"));
}

// Rates in which a part of a time can be read off.
Prices round_prices() {
  Prices prices;
  for (auto& [key, rates] : prices.rates)
    rates = {.call_us = 1, .gflops = 1, .near_gb = 1, .far_gb = 0.5, .drawn_per_us = 1000};
  prices.near_bytes = 1000;
  prices.far_bytes = 100000;
  return prices;
}

TEST(Prices, AddsTheCallTheFlopsTheBytesAndWhatIsDrawn) {
  struct Case {
    const char* inputs;
    const char* nodes;
    double us;
  };
  const Case cases[] = {
      // 1 a call, 2*4*5*3 flops, 4*(12 + 15 + 20) bytes, a ns each
      {"%a: f32[4, 3] input, %b: f32[3, 5] input", "%y: f32[4, 5] = MatMul %a, %b", 1 + 0.120 + 0.188},
      {"%a: f32[10] input", "%y: f32[10] = Dropout(ratio=0.5, stream=0) %a", 1 + 0.010 + 0.080 + 0.010},
      {"%a: f32[4, 3] input", "%y: f32[3, 4] = Transpose(perm=[1, 0]) %a", 0},
      {"%a: f32[4, 3] input", "%y: f32[4] = ConstantOfShape(dtype=f32, shape=[4], value=1.0)", 0},
      // the halfway point, in logarithms, between near and far bytes: 10,000 of them at 1.5 ns; 625 flops
      {"%a: f64[625] input", "%y: f64[625] = Neg %a", 1 + 0.625 + 15},
      // all from memory: 160,000 bytes at 2 ns
      {"%a: f64[10000] input", "%y: f64[10000] = Neg %a", 1 + 10 + 320},
  };
  const Prices prices = round_prices();
  for (const Case& c : cases) {
    SCOPED_TRACE(c.nodes);
    const Graph graph = graph_of(c.inputs, c.nodes);
    EXPECT_NEAR(prices.milliseconds(graph, graph.order().at(0), {}), c.us / 1e3, 1e-12);
  }
}

TEST(Prices, OfADtypeHoldForItAndThoseOfF32ForTheRest) {
  Prices prices = round_prices();
  prices.rates[{KernelClass::kMatMul, DType::kBF16}] = {
      .call_us = 7, .gflops = 1, .near_gb = 1, .far_gb = 1, .drawn_per_us = 1};
  const auto ms = [&](DType dtype) { return prices.milliseconds(KernelClass::kMatMul, dtype, {}); };
  EXPECT_DOUBLE_EQ(ms(DType::kBF16), 0.007);
  EXPECT_DOUBLE_EQ(ms(DType::kF16), 0.001);
  const Graph compared = graph_of("%a: i64[4] input", "%y: bool[4] = Less %a, %a\n%n: bool[4] = Not %y");
  EXPECT_EQ(priced_dtype(compared, compared.order().at(0)), DType::kI64);
  EXPECT_EQ(priced_dtype(compared, compared.order().at(1)), DType::kBool);
  const Graph cast = graph_of("%a: bf16[4] input", "%y: f32[4] = Cast(to=f32) %a\n%z: bf16[4] = Cast(to=bf16) %y");
  EXPECT_EQ(priced_dtype(cast, cast.order().at(0)), DType::kBF16);
  EXPECT_EQ(priced_dtype(cast, cast.order().at(1)), DType::kBF16);
  const Graph graph = graph_of("%a: bf16[4, 4] input", "%y: bf16[4, 4] = MatMul %a, %a");
  EXPECT_NEAR(prices.milliseconds(graph, graph.order().at(0), {}), 0.007 + 128e-6 + 96e-6, 1e-12);
}

TEST(Prices, OfAStepAreThoseOfItsNodes) {
  const Graph graph = parse(
      "graph @g(%x: f32[n, 64] input, %w: f32[64, 64] param) {\n"
      "%h: f32[n, 64] = MatMul %x, %w\n"
      "%t: f32[64, n] = Transpose(perm=[1, 0]) %x\n"
      "%y: f32[n, 64] = Dropout(ratio=0.1, stream=0) %h\n"
      "%g: f32[n, 64] = YieldOp(grads=[0]) %y\n"
      "%d: f32[n, 64] = DropoutGrad(ratio=0.1, stream=0) %g\n"
      "%dw: f32[64, 64] = MatMul %t, %d\n"
      "return %dw gradient %w\n}");
  const Prices prices;
  double sum = 0;
  for (NodeId node : graph.order()) sum += prices.milliseconds(graph, node, {{"n", 128}});
  EXPECT_DOUBLE_EQ(predicted_milliseconds(graph, prices, {{"n", 128}}), sum);
  EXPECT_GT(sum, 0);
  EXPECT_DOUBLE_EQ(prices.milliseconds(graph, graph.yield(), {{"n", 128}}), 0);
  // Longer at more rows, whatever caches hold.
  double before = 0;
  for (int64_t n = 1; n <= 1 << 20; n *= 2) {
    const double now = predicted_milliseconds(graph, prices, {{"n", n}});
    EXPECT_GT(now, before) << n;
    before = now;
  }
}

// What is added to the gradient of the logits, where the caller has one for them besides the loss's: mostly not.
TEST(Prices, OfAddingAGradientThatMostlyIsAbsentAreNone) {
  const Graph graph = parse(
      "graph @g(%x: f32[64] param) {\n"
      "%loss: f32[] = ReduceSum(axes=[0], keepdims=false) %x\n"
      "%dx: f32[64], %dloss: f32[] = YieldOp(grads=[0, 1]) %x, %loss\n"
      "%all: f32[64] = Expand(shape=[64]) %dloss\n"
      "%sum: f32[64] = Add %all, %dx\n"
      "%twice: f32[64] = Add %sum, %all\n"
      "return %twice gradient %x\n}");
  const Prices prices = round_prices();
  EXPECT_EQ(prices.milliseconds(graph, graph.order().at(3), {}), 0);
  EXPECT_GT(prices.milliseconds(graph, graph.order().at(4), {}), 0);
}

// The search for a plan prices every node of graphs with tens of thousands.
TEST(Prices, TakeLittleTimeThemselves) {
  std::string nodes;
  for (int i = 0; i < 10000; ++i) {
    nodes += concat("%h", i, ": f32[b, s, 64] = Add %x, %x\n");
    nodes += concat("%y", i, ": f32[b, s, 64] = MatMul %h", i, ", %w\n");
  }
  const Graph graph = graph_of("%x: f32[b, s, 64] input, %w: f32[64, 64] param", nodes);
  const auto begin = std::chrono::steady_clock::now();
  const double ms = predicted_milliseconds(graph, Prices(), {{"b", 8}, {"s", 512}});
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_GT(ms, 0);
  EXPECT_LT(seconds.count(), 1) << "20,000 nodes; expected are tens of milliseconds, and sanitizers are slow";
  RecordProperty("milliseconds", static_cast<int>(seconds.count() * 1e3));
}

// A row per class in the list, none for what takes no time: without one a node of the class could not be priced.
TEST(Prices, ThatAreShippedHaveEveryClass) {
  const Prices prices;
  for (KernelClass kernels : all_kernel_classes()) {
    if (kernels == KernelClass::kFree) continue;
    EXPECT_TRUE(prices.rates.contains({kernels, DType::kF32})) << name(kernels);
  }
  for (const auto& [key, rates] : prices.rates) EXPECT_LE(rates.far_gb, rates.near_gb) << name(key.first);
}

TEST(Prices, OfAConvolutionGoByItsWindow) {
  const auto of = [](const char* weight, const char* attrs) {
    const Graph graph =
        graph_of(concat("%x: f32[2, 4, 5, 5] input, %w: f32[", weight, "] param"),
                 concat("%y: f32[2, 4, 5, 5] = Conv(dilations=[1, 1], strides=[1, 1], ", attrs, ") %x, %w"));
    return name(priced_kernels(graph.node(graph.order().front())));
  };
  EXPECT_EQ(of("4, 4, 1, 1", "group=1, kernel_shape=[1, 1], pads=[0, 0, 0, 0]"), "place_convolution");
  EXPECT_EQ(of("4, 1, 1, 1", "group=4, kernel_shape=[1, 1], pads=[0, 0, 0, 0]"), "convolution");
  EXPECT_EQ(of("4, 4, 3, 3", "group=1, kernel_shape=[3, 3], pads=[1, 1, 1, 1]"), "convolution");
}

TEST(Prices, SurviveTheirText) {
  Prices prices = round_prices();
  EXPECT_EQ(Prices::parse(prices.text()), prices);
  prices.processor = "Some Processor (R) of 3 GHz";
  prices.threads = 12;
  prices.rates[{KernelClass::kSoftmax, DType::kF16}] = {0.1, std::numeric_limits<double>::infinity(), 1e-7, 1e-7, 2};
  EXPECT_EQ(Prices::parse(prices.text()), prices);
  EXPECT_NE(Prices::parse(prices.text()), Prices());
  EXPECT_EQ(Prices::parse(Prices().text()), Prices());
}

TEST(Prices, RefuseADamagedText) {
  const auto message = [](const std::string& text) -> std::string {
    try {
      Prices::parse(text);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      return error.what();
    }
    return "taken";
  };
  Prices measured;
  measured.processor = "P";
  measured.threads = 2;
  const std::string text = measured.text();
  // In place of the first line that begins with `start`.
  const auto with_line = [&](std::string_view start, std::string_view line) {
    const size_t at = text.find(concat("\n", start)) + 1;
    return text.substr(0, at) + std::string(line) + text.substr(text.find('\n', at));
  };
  struct Case {
    std::string text;
    const char* culprit;
  };
  const Case cases[] = {
      {"", "prices, line 0: expected a further line"},
      {"lowtide prices 2\n", "line 1: expected \"lowtide prices 1\", found \"lowtide prices 2\""},
      {with_line("threads", "threads two"), "line 3: expected \"threads\" and how many"},
      {with_line("threads", "threads 0"), "line 3: expected \"threads\" and how many"},
      {with_line("caches", "caches 5 5"), "line 4: expected fewer near than far bytes"},
      {with_line("matmul", "matmul f32 1 2 3"), "expected a class of kernels, a dtype, µs a call"},
      {with_line("matmul", "matmul f32 1 0 3 3 1"), "expected a class of kernels, a dtype, µs a call"},
      {with_line("matmul", "matmul f32 1 nan 3 3 1"), "expected a class of kernels, a dtype, µs a call"},
      {with_line("matmul", "matmul f32 1 1 3 4 1"), "expected no more GB/s from memory than in caches"},
      {with_line("matmul", "matmul f33 1 1 3 3 1"), "found \"matmul f33 1 1 3 3 1\""},
      {with_line("matmul", "reduce f32 1 1 3 3 1"), "expected one row \"reduce f32\""},
      {with_line("matmul", "free f32 1 1 3 3 1"), "expected a class of kernels"},
      {with_line("matmul", "matmul f64 1 1 3 3 1"), "expected a row \"matmul f32\" before the end, found \"end\""},
      {text.substr(0, text.size() / 2), "found"},
      {text + "more", "expected nothing behind \"end\", found \"more\""},
  };
  for (const Case& c : cases) EXPECT_NE(message(c.text).find(c.culprit), std::string::npos) << message(c.text);
  for (size_t end = 0; end + 1 < text.size(); ++end) EXPECT_NE(message(text.substr(0, end)), "taken") << end;
}

}  // namespace
}  // namespace lowtide
