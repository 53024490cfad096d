#include "kernels/cpu/loss/linear_cross_entropy.h"

#include <cmath>
#include <numeric>

#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

struct LinearCrossEntropyCase {
  int64_t rows = 5, inner = 8, classes = 11;
  std::string reduction = "mean";
  double smoothing = 0;
  bool has_bias = true;
};

struct Problem : LinearCrossEntropyCase {
  std::vector<float> x, weight, bias;
  std::vector<int64_t> labels;
  BoundAttrs attrs;

  explicit Problem(const LinearCrossEntropyCase& of)
      : LinearCrossEntropyCase(of),
        x(random_floats(rows * inner, 1)),
        weight(random_floats(classes * inner, 2, 0.5f)),
        bias(random_floats(classes, 3)),
        labels(static_cast<size_t>(rows)),
        attrs{{"reduction", reduction}, {"label_smoothing", smoothing}, {"ignore_index", int64_t{-100}}} {
    for (int64_t r = 0; r < rows; ++r) labels[r] = r % 7 == 3 ? -100 : (r * 31) % classes;
  }
  // What the steps get, and the gradient from logits: the one op has a dloss of 1 and no other gradient.
  float dloss = 1;
  std::vector<float> sent;

  const float* bias_or_none() const { return has_bias ? bias.data() : nullptr; }

  // loss, dx, dweight, dbias one after another
  std::vector<float> fused() const {
    std::vector<float> out(1 + x.size() + weight.size() + (has_bias ? bias.size() : 0));
    float *dx = &out[1], *dweight = dx + x.size(), *dbias = has_bias ? dweight + weight.size() : nullptr;
    EXPECT_EQ(run_kernel("cpu.LinearCrossEntropyLoss",
                         {floats(x.data(), {rows, inner}), floats(weight.data(), {classes, inner}), integers(labels),
                          floats(bias_or_none(), {classes})},
                         {floats(out.data(), {}), floats(dx, {rows, inner}), floats(dweight, {classes, inner}),
                          floats(dbias, {classes})},
                         attrs),
              nullptr);
    return out;
  }

  // The same by the kernels of the single steps.
  std::vector<float> in_steps() const {
    std::vector<float> out(1 + x.size() + weight.size() + (has_bias ? bias.size() : 0));
    float *dx = &out[1], *dweight = dx + x.size(), *dbias = has_bias ? dweight + weight.size() : nullptr;
    std::vector<float> z(rows * classes), lse(rows);
    const auto gemm = [&](bool trans_a, bool trans_b, TensorRef a, TensorRef b, TensorRef c, TensorRef y) {
      const BoundAttrs flags{{"transA", trans_a}, {"transB", trans_b}, {"alpha", 1.0}, {"beta", 1.0}};
      EXPECT_EQ(run_kernel("cpu.Gemm", {a, b, c}, {y}, flags), nullptr);
    };
    const TensorRef rows_of_x = floats(x.data(), {rows, inner}), w = floats(weight.data(), {classes, inner}),
                    logits = floats(z.data(), {rows, classes});
    gemm(false, true, rows_of_x, w, floats(bias_or_none(), {classes}), logits);
    run_kernel("cpu.SoftmaxCrossEntropyLoss", {logits, integers(labels)},
               {floats(out.data(), {}), floats(lse.data(), {rows})}, attrs);
    run_kernel("cpu.SoftmaxCrossEntropyLossGrad",
               {floats(&dloss, {}), logits, integers(labels), floats(lse.data(), {rows})}, {logits}, attrs);
    for (size_t i = 0; i < sent.size(); ++i) z[i] += sent[i];
    gemm(true, false, logits, rows_of_x, {}, floats(dweight, {classes, inner}));
    gemm(false, false, logits, w, {}, floats(dx, {rows, inner}));
    if (has_bias)
      run_kernel("cpu.ReduceSum", {logits}, {floats(dbias, {classes})},
                 {{"axes", std::vector<int64_t>{0}}, {"keepdims", false}});
    return out;
  }

  // And in double.
  std::vector<double> exact() const {
    std::vector<double> out(1 + x.size() + weight.size() + (has_bias ? bias.size() : 0));
    double *dx = &out[1], *dweight = dx + x.size(), *dbias = dweight + weight.size(), total = 0;
    const auto counted = static_cast<double>(rows - std::count(labels.begin(), labels.end(), -100));
    const double divisor = reduction == "mean" ? counted : 1;
    for (int64_t r = 0; r < rows; ++r) {
      if (labels[r] == -100) continue;
      std::vector<double> z(classes);
      double top = -INFINITY, sum = 0;
      for (int64_t c = 0; c < classes; ++c) {
        z[c] = has_bias ? bias[c] : 0;
        for (int64_t k = 0; k < inner; ++k) z[c] += double{x[r * inner + k]} * weight[c * inner + k];
        top = std::max(top, z[c]);
      }
      for (double each : z) sum += std::exp(each - top);
      for (int64_t c = 0; c < classes; ++c) {
        const double target = smoothing / double(classes) + (c == labels[r] ? 1 - smoothing : 0);
        const double log_p = z[c] - top - std::log(sum), dz = (std::exp(log_p) - target) / divisor;
        total -= target * log_p;
        if (has_bias) dbias[c] += dz;
        for (int64_t k = 0; k < inner; ++k) {
          dx[r * inner + k] += dz * weight[c * inner + k];
          dweight[c * inner + k] += dz * x[r * inner + k];
        }
      }
    }
    out[0] = total / divisor;
    return out;
  }
};

const LinearCrossEntropyCase kLinearCrossEntropyCases[] = {
    {},
    {.rows = 1, .inner = 1, .classes = 1},
    {.rows = 17, .inner = 300, .classes = 513, .reduction = "sum"},
    {.rows = 256, .inner = 16, .classes = 40, .smoothing = 0.1},
    {.rows = 257, .inner = 16, .classes = 2000, .reduction = "sum", .smoothing = 0.1},
    {.rows = 700, .inner = 24, .classes = 1100},
    {.rows = 600, .inner = 24, .classes = 70, .has_bias = false},
    {.rows = 900, .inner = 800, .classes = 40},    // a first block as large as dW and 512 rows
    {.rows = 800, .inner = 256, .classes = 2100},  // blocks of 512, 256 and 32 rows, panels of 512 classes
};

TEST(LinearCrossEntropy, LossAndGradients) {
  for (const LinearCrossEntropyCase& each : kLinearCrossEntropyCases) {
    const Problem problem(each);
    SCOPED_TRACE(testing::Message() << each.rows << " rows, " << each.inner << " columns, " << each.classes
                                    << " classes, " << each.reduction << ", smoothing " << each.smoothing);
    const std::vector<double> exact = problem.exact();
    // A logit is a sum of `inner` terms of about 1; its error is a relative one of the probabilities. The other sums
    // have terms of about 1 or less.
    const double of_logits = 0x1p-21 * std::sqrt(double(each.inner));
    const double terms = std::max(double(each.classes), double(each.rows));
    for_every_run([&] { return problem.fused(); },
                  [&](const std::vector<float>& out) {
                    expect_close(out.data(), 1, [&](int64_t) { return exact[0]; }, of_logits, 1e-6);
                    expect_close(
                        &out[1], static_cast<int64_t>(out.size()) - 1, [&](int64_t i) { return exact[1 + i]; },
                        of_logits, 0x1p-22 * std::sqrt(terms));
                  });
  }
}

// So a plan that has the one op and a plan that has the other train alike.
TEST(LinearCrossEntropy, HasTheBitsOfItsSteps) {
  for (const LinearCrossEntropyCase& each : kLinearCrossEntropyCases) {
    const Problem problem(each);
    SCOPED_TRACE(testing::Message() << each.rows << " rows, " << each.classes << " classes");
    for_every_run([&] { return problem.fused(); },
                  [&](const std::vector<float>& out) {
                    const std::vector<float> steps = problem.in_steps();
                    EXPECT_EQ(std::memcmp(out.data(), steps.data(), out.size() * sizeof(float)), 0);
                  });
  }
}

TEST(LinearCrossEntropyGrad, HasTheBitsOfItsSteps) {
  for (LinearCrossEntropyCase each : kLinearCrossEntropyCases) {
    each.has_bias = true;
    Problem problem(each);
    const auto rows = each.rows, inner = each.inner, classes = each.classes;
    problem.dloss = 0.3f;
    for (bool has_sent : {false, true}) {
      SCOPED_TRACE(testing::Message() << rows << " rows, " << classes << " classes, another gradient: " << has_sent);
      if (has_sent) problem.sent = random_floats(rows * classes, 7);
      std::vector<float> logits(rows * classes), lse(rows);
      const auto forward = [&] {
        const BoundAttrs flags{{"transA", false}, {"transB", true}, {"alpha", 1.0}, {"beta", 1.0}};
        run_kernel("cpu.Gemm",
                   {floats(problem.x.data(), {rows, inner}), floats(problem.weight.data(), {classes, inner}),
                    floats(problem.bias.data(), {classes})},
                   {floats(logits.data(), {rows, classes})}, flags);
        run_kernel("cpu.SoftmaxCrossEntropyLoss", {floats(logits.data(), {rows, classes}), integers(problem.labels)},
                   {{}, floats(lse.data(), {rows})}, problem.attrs);
      };
      for_every_run(
          [&] {
            forward();
            std::vector<float> out(problem.x.size() + problem.weight.size() + problem.bias.size());
            float *dx = out.data(), *dweight = dx + problem.x.size(), *dbias = dweight + problem.weight.size();
            // Absent, or there without bytes: the caller has sent none.
            TensorRef other = floats(has_sent ? problem.sent.data() : logits.data(), {rows, classes});
            if (!has_sent) other.data = nullptr;
            EXPECT_EQ(run_kernel(
                          "cpu.LinearCrossEntropyLossGrad",
                          {floats(&problem.dloss, {}), floats(logits.data(), {rows, classes}), integers(problem.labels),
                           floats(lse.data(), {rows}), floats(problem.weight.data(), {classes, inner}),
                           floats(problem.x.data(), {rows, inner}), other},
                          {floats(dx, {rows, inner}), floats(dweight, {classes, inner}), floats(dbias, {classes})},
                          problem.attrs),
                      nullptr);
            return out;
          },
          [&](const std::vector<float>& out) {
            const std::vector<float> steps = problem.in_steps();
            EXPECT_EQ(std::memcmp(out.data(), &steps[1], out.size() * sizeof(float)), 0);
          });
    }
  }
}

TEST(LinearCrossEntropy, GivesWhatIsAskedForAlone) {
  const Problem problem({.rows = 300, .classes = 90});
  const std::vector<float> all = problem.fused();
  const auto rows = problem.rows, inner = problem.inner, classes = problem.classes;
  const float* found[] = {&all[0], &all[1], &all[1] + problem.x.size(),
                          &all[1] + problem.x.size() + problem.weight.size()};
  const std::vector<std::vector<int64_t>> shapes = {{}, {rows, inner}, {classes, inner}, {classes}};
  for (size_t wanted = 0; wanted < 4; ++wanted) {
    std::vector<TensorRef> outputs(4);
    const int64_t numel =
        std::accumulate(shapes[wanted].begin(), shapes[wanted].end(), int64_t{1}, std::multiplies<>());
    std::vector<float> out(static_cast<size_t>(numel));
    outputs[wanted] = floats(out.data(), shapes[wanted]);
    EXPECT_EQ(run_kernel("cpu.LinearCrossEntropyLoss",
                         {floats(problem.x.data(), {rows, inner}), floats(problem.weight.data(), {classes, inner}),
                          integers(problem.labels), floats(problem.bias.data(), {classes})},
                         outputs, problem.attrs),
              nullptr);
    EXPECT_EQ(std::memcmp(out.data(), found[wanted], out.size() * sizeof(float)), 0) << "output " << wanted;
  }
}

TEST(LinearCrossEntropy, OfNoRowThatCountsIsNaNAndMovesNothing) {
  for (int64_t rows : {0, 3}) {
    Problem problem({.rows = rows});
    std::fill(problem.labels.begin(), problem.labels.end(), -100);
    const std::vector<float> out = problem.fused();
    EXPECT_TRUE(std::isnan(out[0]));
    EXPECT_TRUE(std::all_of(out.begin() + 1, out.end(), [](float each) { return each == 0; }));
  }
}

TEST(LinearCrossEntropy, RefusesALabelThatIsNoClass) {
  Problem problem({});
  problem.labels[4] = problem.classes;
  float loss = 42;
  const KernelStatus status = run_kernel(
      "cpu.LinearCrossEntropyLoss",
      {floats(problem.x.data(), {5, 8}), floats(problem.weight.data(), {11, 8}), integers(problem.labels), {}},
      {floats(&loss, {}), {}, {}, {}}, problem.attrs);
  EXPECT_STREQ(status, kBadLabel);
  EXPECT_EQ(loss, 42);
}

}  // namespace
}  // namespace lowtide::cpu
