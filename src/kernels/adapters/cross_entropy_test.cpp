// Losses of bf16 and f16 logits, widened some rows at a time, have the bits of those of the f32 logits.
#include <gtest/gtest.h>

#include <random>

#include "base/half.h"
#include "kernels/kernel.h"

namespace lowtide {
namespace {

constexpr int64_t kRows = 150, kClasses = 37;  // more rows than one block

template <class T>
TensorRef tensor(std::vector<T>& values, DType dtype, std::initializer_list<int64_t> sizes) {
  TensorRef ref;
  ref.data = values.data();
  ref.dtype = dtype;
  ref.rank = static_cast<int32_t>(sizes.size());
  ref.present = true;
  std::copy(sizes.begin(), sizes.end(), ref.sizes);
  for (int64_t i = ref.rank - 1, stride = 1; i >= 0; stride *= ref.sizes[i--]) ref.strides[i] = stride;
  return ref;
}

void run(const char* name, std::vector<TensorRef> inputs, std::vector<TensorRef> outputs, const BoundAttrs& attrs) {
  const Kernel* kernel = find_kernel(name);
  ASSERT_NE(kernel, nullptr);
  KernelCall call{inputs, outputs, &attrs, nullptr, 0, 0};
  if (kernel->scratch_bytes) call.scratch_bytes = kernel->scratch_bytes(call);
  std::vector<float> scratch(static_cast<size_t>(call.scratch_bytes / 4 + 16));
  call.scratch = scratch.data();
  while (reinterpret_cast<uintptr_t>(call.scratch) % 64 != 0) call.scratch = static_cast<float*>(call.scratch) + 1;
  EXPECT_EQ(kernel->run(call), nullptr);
}

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
  const TensorRef target = tensor(labels, DType::kI64, {kRows});
  const TensorRef logits[2] = {tensor(wide, DType::kF32, {kRows, kClasses}), tensor(narrow, dtype, {kRows, kClasses})};
  const TensorRef grads[2] = {tensor(wide_grad, DType::kF32, {kRows, kClasses}),
                              in_place ? logits[1] : tensor(narrow_grad, dtype, {kRows, kClasses})};
  const char* names[2][2] = {
      {"cpu.SoftmaxCrossEntropyLoss", "cpu.SoftmaxCrossEntropyLossGrad"},
      {"cpu.SoftmaxCrossEntropyLoss.rows_of_half", "cpu.SoftmaxCrossEntropyLossGrad.rows_of_half"}};
  std::vector<float> incoming(kRows);
  for (float& value : incoming) value = static_cast<float>(random() % 100) / 10.0f;
  for (int i = 0; i < 2; ++i) {
    const TensorRef loss = whole ? tensor(losses[i], DType::kF32, {}) : tensor(losses[i], DType::kF32, {kRows});
    const TensorRef sums = tensor(lse[i], DType::kF32, {kRows});
    run(names[i][0], {logits[i], target}, {loss, sums}, attrs);
    const TensorRef dloss = whole ? tensor(incoming, DType::kF32, {}) : tensor(incoming, DType::kF32, {kRows});
    run(names[i][1], {dloss, logits[i], target, sums}, {grads[i]}, attrs);
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
}  // namespace lowtide
