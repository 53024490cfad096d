// Losses of bf16 and f16 logits, widened some rows at a time, have the bits of those of the f32 logits.
#include <gtest/gtest.h>

#include <random>

#include "base/half.h"
#include "kernels/cpu/test_calls.h"

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

}  // namespace
}  // namespace lowtide::cpu
