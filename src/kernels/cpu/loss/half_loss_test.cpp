// Losses of bf16 and f16 logits, widened some rows at a time, have the bits of those of the f32 logits.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/half.h"
#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"
#include "opset/logit_panels.h"

namespace lowtide::cpu {
namespace {

constexpr int64_t kRows = 150, kClasses = 37;  // more rows than one block

template <class Half>
void compare(DType dtype, const std::string& reduction, double smoothing, bool in_place) {
  std::mt19937 random(3);
  std::vector<Half> narrow(kRows * kClasses), narrow_grad(narrow.size());
  std::vector<float> wide(narrow.size()), wide_grad(narrow.size());
  std::vector<int64_t> labels(kRows);
  for (size_t i = 0; i < narrow.size(); ++i) {
    narrow[i] = Half(static_cast<float>(random() % 4001) / 500.0f - 4.0f);
    wide[i] = narrow[i];
  }
  for (int64_t& label : labels) label = static_cast<int64_t>(random() % kClasses);
  labels[70] = -100;
  BoundAttrs attrs;
  attrs.set("reduction", reduction);
  attrs.set("ignore_index", int64_t{-100});
  attrs.set("label_smoothing", smoothing);
  const bool whole = reduction != "none";
  std::vector<float> losses[2] = {std::vector<float>(kRows), std::vector<float>(kRows)},
                     lse[2] = {losses[0], losses[0]};
  const TensorRef target = tensor(labels.data(), DType::kI64, {kRows});
  const TensorRef logits[2] = {tensor(wide.data(), DType::kF32, {kRows, kClasses}),
                               tensor(narrow.data(), dtype, {kRows, kClasses})};
  const TensorRef grads[2] = {tensor(wide_grad.data(), DType::kF32, {kRows, kClasses}),
                              in_place ? logits[1] : tensor(narrow_grad.data(), dtype, {kRows, kClasses})};
  const char* names[2][2] = {
      {"cpu.SoftmaxCrossEntropyLoss", "cpu.SoftmaxCrossEntropyLossGrad"},
      {"cpu.SoftmaxCrossEntropyLoss.rows_of_half", "cpu.SoftmaxCrossEntropyLossGrad.rows_of_half"}};
  std::vector<float> incoming(kRows);
  for (float& value : incoming) value = static_cast<float>(random() % 100) / 10.0f;
  for (int i = 0; i < 2; ++i) {
    const TensorRef loss =
        whole ? tensor(losses[i].data(), DType::kF32, {}) : tensor(losses[i].data(), DType::kF32, {kRows});
    const TensorRef sums = tensor(lse[i].data(), DType::kF32, {kRows});
    EXPECT_EQ(run_kernel(names[i][0], {logits[i], target}, {loss, sums}, attrs), nullptr);
    const TensorRef dloss =
        whole ? tensor(incoming.data(), DType::kF32, {}) : tensor(incoming.data(), DType::kF32, {kRows});
    EXPECT_EQ(run_kernel(names[i][1], {dloss, logits[i], target, sums}, {grads[i]}, attrs), nullptr);
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_EQ(lse[0], lse[1]);
  const Half* found = grads[1].as<Half>();
  for (size_t i = 0; i < wide_grad.size(); ++i) ASSERT_EQ(found[i].bits, Half(wide_grad[i]).bits) << i;
}

TEST(HalfCrossEntropy, HasTheBitsOfF32Logits) {
  for (const char* reduction : {"mean", "sum", "none"})
    for (const bool in_place : {false, true}) {
      compare<BFloat16>(DType::kBF16, reduction, 0, in_place);
      compare<Float16>(DType::kF16, reduction, 0.1, in_place);
    }
}

struct LayerGrad {
  int64_t rows, inner, classes;
  bool has_sent, has_bias;
};

// Panels of classes, all but the last of 512.
template <class Half>
void compare_with_steps(const LayerGrad& c, DType dtype) {
  const auto stored = [](int64_t n, uint32_t seed) {
    const std::vector<float> values = random_floats(n + 1, seed);
    return std::vector<Half>(values.begin(), values.end());
  };
  const std::vector<Half> logits = stored(c.rows * c.classes, 1), weight = stored(c.classes * c.inner, 2),
                          x = stored(c.rows * c.inner, 3), sent = stored(c.rows * c.classes, 4);
  const auto matrix = [&](const Half* data, int64_t rows, int64_t cols) { return tensor(data, dtype, {rows, cols}); };
  std::vector<int64_t> label_values(static_cast<size_t>(c.rows));
  for (int64_t r = 0; r < c.rows; ++r) label_values[r] = r % 7 == 3 ? -100 : (r * 311) % c.classes;
  const TensorRef labels = tensor(label_values.data(), DType::kI64, {c.rows});
  std::vector<float> lse(c.rows), dloss = {3};
  const TensorRef sums = floats(lse.data(), {c.rows}), dy = floats(dloss.data(), {});
  const TensorRef z = matrix(logits.data(), c.rows, c.classes), w = matrix(weight.data(), c.classes, c.inner),
                  rows_of_x = matrix(x.data(), c.rows, c.inner), other = matrix(sent.data(), c.rows, c.classes);
  const BoundAttrs attrs{{"reduction", "mean"}, {"ignore_index", int64_t{-100}}, {"label_smoothing", 0.1}};
  const auto gradients = [&](std::vector<Half>& out, auto compute) {
    out.resize(c.rows * c.inner + c.classes * c.inner + c.classes);
    Half *dx = out.data(), *dweight = dx + c.rows * c.inner;
    compute(matrix(dx, c.rows, c.inner), matrix(dweight, c.classes, c.inner),
            c.has_bias ? tensor(dweight + c.classes * c.inner, dtype, {c.classes}) : TensorRef{});
  };
  for_every_run(
      [&] {
        run_kernel("cpu.SoftmaxCrossEntropyLoss.rows_of_half", {z, labels}, {{}, sums}, attrs);
        std::vector<Half> out;
        gradients(out, [&](TensorRef dx, TensorRef dweight, TensorRef dbias) {
          TensorRef incoming = other;
          if (!c.has_sent) incoming.data = nullptr;
          EXPECT_EQ(run_kernel("cpu.LinearCrossEntropyLossGrad.half", {dy, z, labels, sums, w, rows_of_x, incoming},
                               {dx, dweight, dbias}, attrs),
                    nullptr);
        });
        return out;
      },
      [&](const std::vector<Half>& out) {
        std::vector<Half> steps, dz_values = logits;
        const TensorRef dz = matrix(dz_values.data(), c.rows, c.classes);
        run_kernel("cpu.SoftmaxCrossEntropyLossGrad.rows_of_half", {dy, z, labels, sums}, {dz}, attrs);
        if (c.has_sent) run_kernel("cpu.Add", {dz, other}, {dz}, {});
        gradients(steps, [&](TensorRef dx, TensorRef dweight, TensorRef dbias) {
          const auto gemm = [&](bool transposed, TensorRef b, TensorRef y) {
            run_kernel("cpu.Gemm.half", {dz, b, {}}, {y},
                       {{"transA", transposed}, {"transB", false}, {"alpha", 1.0}, {"beta", 1.0}});
          };
          gemm(true, rows_of_x, dweight);
          gemm(false, w, dx);
          if (c.has_bias)
            run_kernel("cpu.ReduceSum.half_columns", {dz}, {dbias},
                       {{"axes", std::vector<int64_t>{0}}, {"keepdims", false}});
        });
        for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i].bits, steps[i].bits) << i;
      });
}

TEST(HalfLinearCrossEntropyGrad, HasTheBitsOfItsSteps) {
  for (const LayerGrad& c : {LayerGrad{5, 8, 11, false, true},
                             {33, 40, 1024, true, false},
                             {70, 24, 2100, false, true},
                             {300, 48, 3000, true, true}}) {
    SCOPED_TRACE(testing::Message() << c.rows << " rows, " << c.classes << " classes");
    compare_with_steps<BFloat16>(c, DType::kBF16);
    compare_with_steps<Float16>(c, DType::kF16);
  }
}

struct KeptLogits {
  int64_t rows, inner, classes;
  bool has_bias, is_wide;  // x, weight, bias and the gradients in f32
};

template <class Number>
std::vector<Number> stored_values(int64_t n, uint32_t seed) {
  const std::vector<float> values = random_floats(n, seed);
  return std::vector<Number>(values.begin(), values.end());
}

// One layer, with its logits or with panels of them that lie where the weight's gradient goes.
template <class Half, class Number>
void compare_kept_logits(const KeptLogits& c, DType dtype) {
  const DType number = c.is_wide ? DType::kF32 : dtype;
  const std::vector<Number> x = stored_values<Number>(c.rows * c.inner, 1), bias = stored_values<Number>(c.classes, 3),
                            weight = stored_values<Number>(c.classes * c.inner, 2);
  std::vector<int64_t> label_values(static_cast<size_t>(c.rows));
  for (int64_t r = 0; r < c.rows; ++r) label_values[r] = r % 5 == 3 ? -100 : (r * 311) % c.classes;
  const TensorRef labels = tensor(label_values.data(), DType::kI64, {c.rows});
  const TensorRef rows = tensor(x.data(), number, {c.rows, c.inner}),
                  w = tensor(weight.data(), number, {c.classes, c.inner}),
                  b = c.has_bias ? tensor(bias.data(), number, {c.classes}) : TensorRef{};
  const float dloss = 3;
  const TensorRef dy = floats(&dloss, {});
  BoundAttrs attrs{{"reduction", "mean"}, {"ignore_index", int64_t{-100}}, {"label_smoothing", 0.1}};
  BoundAttrs converting = attrs, product{{"transA", false}, {"transB", true}, {"alpha", 1.0}, {"beta", 1.0}};
  for (BoundAttrs* each : {&converting, &product}) each->set("computes", dtype);
  if (c.is_wide) converting.set("gives", DType::kF32);
  BoundAttrs keeping = attrs;
  keeping.set("computes", dtype);
  keeping.set("keeps", number);

  // Loss, log-sum-exps and gradients, one after another.
  struct Result {
    TensorRef loss, lse, dx, dweight, dbias;
  };
  const auto results_in = [&](std::vector<char>& bytes) {
    const int64_t size = size_bytes(number), of_x = c.rows * c.inner, of_weight = c.classes * c.inner;
    bytes.resize(4 + 4 * c.rows + size * (of_x + of_weight + c.classes));
    char *lse = bytes.data() + 4, *dx = lse + 4 * c.rows, *dweight = dx + size * of_x,
         *dbias = dweight + size * of_weight;
    return Result{floats(reinterpret_cast<float*>(bytes.data()), {}), floats(reinterpret_cast<float*>(lse), {c.rows}),
                  tensor(dx, number, {c.rows, c.inner}), tensor(dweight, number, {c.classes, c.inner}),
                  tensor(dbias, number, {c.classes})};
  };
  for_every_run(
      [&] {
        std::vector<char> bytes;
        const Result out = results_in(bytes);
        const LogitPanels places(c.rows, c.classes, c.inner * size_bytes(number) / 2);
        const int64_t left = c.classes - kLogitPanel * places.in_gradient;
        std::vector<Half> rest_values(left * c.rows + 1);
        const TensorRef rest = tensor(rest_values.data(), dtype, {left, c.rows}), head = out.dweight;
        EXPECT_EQ(run_kernel("cpu.PanelLinearCrossEntropyLoss", {rows, w, labels, b}, {out.loss, out.lse, head, rest},
                             keeping),
                  nullptr);
        EXPECT_EQ(run_kernel("cpu.PanelLinearCrossEntropyLossGrad", {dy, head, labels, out.lse, w, rows, rest},
                             {out.dx, out.dweight, out.dbias}, converting),
                  nullptr);
        return bytes;
      },
      [&](const std::vector<char>& found) {
        std::vector<char> bytes;
        const Result steps = results_in(bytes);
        std::vector<Half> logits(c.rows * c.classes);
        const TensorRef z = tensor(logits.data(), dtype, {c.rows, c.classes});
        run_kernel("cpu.Gemm.half", {rows, w, b}, {z}, product);
        run_kernel("cpu.SoftmaxCrossEntropyLoss.rows_of_half", {z, labels}, {steps.loss, steps.lse}, attrs);
        run_kernel("cpu.LinearCrossEntropyLossGrad.half", {dy, z, labels, steps.lse, w, rows, {}},
                   {steps.dx, steps.dweight, steps.dbias}, converting);
        EXPECT_EQ(std::memcmp(found.data(), bytes.data(), bytes.size()), 0);
      });
}

// More rows than the gradient has columns, and fewer; one panel, full ones, and a narrow last one.
TEST(PanelLinearCrossEntropy, HasTheBitsOfItsSteps) {
  for (const KeptLogits& c : {KeptLogits{5, 8, 11, true, false},
                              {33, 40, 1024, false, false},
                              {70, 24, 2100, true, false},
                              {24, 70, 5000, true, false},
                              {100, 48, 4096, false, true},
                              {20, 33, 3000, true, true}}) {
    SCOPED_TRACE(testing::Message() << c.rows << " rows, " << c.classes << " classes");
    if (c.is_wide) {
      compare_kept_logits<BFloat16, float>(c, DType::kBF16);
      compare_kept_logits<Float16, float>(c, DType::kF16);
    } else {
      compare_kept_logits<BFloat16, BFloat16>(c, DType::kBF16);
      compare_kept_logits<Float16, Float16>(c, DType::kF16);
    }
  }
}

// The order in which gradients take the place of logits.
TEST(LogitPanels, AreReadBeforeTheirPlaceIsWritten) {
  for (int64_t rows : {1, 7, 300, 1500})
    for (int64_t row : {1, 64, 768})
      for (int64_t classes : {10, 1024, 5000, 50257}) {
        const LogitPanels places(rows, classes, row);
        for (int64_t p = 0; p < places.count(); ++p) {
          if (!places.is_in_gradient(p)) continue;
          EXPECT_EQ(places.width(p), kLogitPanel);
          EXPECT_LE(places.offset(p) + kLogitPanel * rows, classes * row);
          EXPECT_GE(places.offset(p), p * kLogitPanel * row);
        }
        const int64_t last = places.count() - 1;
        const int64_t in_rest = (classes - kLogitPanel * places.in_gradient) * rows;
        EXPECT_LE(places.is_in_gradient(last) ? 0 : places.offset(last) + places.width(last) * rows, in_rest);
      }
}

}  // namespace
}  // namespace lowtide::cpu
