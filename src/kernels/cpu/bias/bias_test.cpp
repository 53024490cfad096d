// The fused functions of x + bias give the bits of the ops that they stand for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "kernels/prepared.h"

namespace lowtide {
namespace {

constexpr int64_t kRows = 37, kCols = 203;

// Dense.
struct Tensor {
  std::vector<double> storage;  // wide enough for any dtype
  TensorRef ref;

  Tensor(Tensor&&) = default;
  Tensor(DType dtype, const std::vector<int64_t>& sizes) {
    ref.dtype = dtype;
    ref.present = true;
    ref.rank = static_cast<int32_t>(sizes.size());
    std::copy(sizes.begin(), sizes.end(), ref.sizes);
    int64_t stride = 1;
    for (int i = ref.rank - 1; i >= 0; stride *= ref.sizes[i--]) ref.strides[i] = stride;
    storage.resize(static_cast<size_t>(stride));
    ref.data = storage.data();
  }
  std::vector<char> bytes() const {
    const char* begin = static_cast<const char*>(ref.data);
    return {begin, begin + ref.numel() * size_bytes(ref.dtype)};
  }
};

Tensor like(const Tensor& x) { return Tensor(x.ref.dtype, {x.ref.sizes, x.ref.sizes + x.ref.rank}); }

// The best kernel that takes these operands.
Tensor run(Op op, std::vector<const Tensor*> inputs, const BoundAttrs& attrs, const Tensor& shape) {
  Tensor y = like(shape);
  std::vector<TensorRef> refs;
  std::vector<OperandInfo> infos;
  for (const Tensor* input : inputs) {
    refs.push_back(input->ref);
    infos.push_back({input->ref.dtype, input->ref.rank, true, Layout::kRowMajor});
  }
  const OperandInfo out{y.ref.dtype, y.ref.rank, true, Layout::kRowMajor};
  for (const Kernel& kernel : kernels_of(op)) {
    if (kernel.supports && kernel.supports({op, infos, {&out, 1}, &attrs}) != nullptr) continue;
    BoundCall call{{refs, {&y.ref, 1}, nullptr, 0, 0x123456789abcdef}, &attrs};
    if (kernel.scratch_bytes) call.scratch_bytes = kernel.scratch_bytes(call);
    std::vector<double> scratch(static_cast<size_t>(call.scratch_bytes / 8 + 9));
    call.scratch = scratch.data();
    while (reinterpret_cast<uintptr_t>(call.scratch) % 64 != 0) call.scratch = static_cast<double*>(call.scratch) + 1;
    EXPECT_EQ(run_once(kernel, call), nullptr);
    return y;
  }
  ADD_FAILURE() << "no kernel of " << name(op);
  return y;
}

Tensor random(DType dtype, const std::vector<int64_t>& sizes, unsigned seed) {
  Tensor wide(DType::kF32, sizes), narrow(dtype, sizes);
  std::mt19937 generator(seed);
  for (int64_t i = 0; i < wide.ref.numel(); ++i)
    wide.ref.as<float>()[i] = static_cast<float>(generator() % 4001) / 1000 - 2;
  run_once(kernels_of(Op::kCast).back(), {{{&wide.ref, 1}, {&narrow.ref, 1}}});
  return narrow;
}

class FunctionsOfSums : public testing::TestWithParam<DType> {
 protected:
  const Tensor x = random(GetParam(), {kRows, kCols}, 1), bias = random(GetParam(), {kCols}, 2);
  const Tensor other = random(GetParam(), {kRows, kCols}, 3);
  const Tensor sum = run(Op::kAdd, {&x, &bias}, {}, x);
};

TEST_P(FunctionsOfSums, ActivationsAndTheirGradients) {
  EXPECT_EQ(run(Op::kBiasGelu, {&x, &bias}, {}, x).bytes(), run(Op::kGelu, {&sum}, {}, x).bytes());
  EXPECT_EQ(run(Op::kFastGelu, {&x, &bias}, {}, x).bytes(), run(Op::kFastGelu, {&sum}, {}, x).bytes());
  EXPECT_EQ(run(Op::kBiasGeluGrad, {&other, &x, &bias}, {}, x).bytes(),
            run(Op::kGeluGrad, {&other, &sum}, {}, x).bytes());
  EXPECT_EQ(run(Op::kFastGeluGrad, {&other, &x, &bias}, {}, x).bytes(),
            run(Op::kFastGeluGrad, {&other, &sum}, {}, x).bytes());
}

TEST_P(FunctionsOfSums, Dropout) {
  const BoundAttrs attrs{{"ratio", 0.3}, {"stream", int64_t{5}}};
  const Tensor dropped = run(Op::kDropout, {&sum}, attrs, x);
  EXPECT_EQ(run(Op::kBiasDropout, {&x, &bias}, attrs, x).bytes(), dropped.bytes());
  EXPECT_EQ(run(Op::kBiasDropout, {&x, &bias, &other}, attrs, x).bytes(),
            run(Op::kAdd, {&dropped, &other}, {}, x).bytes());
}

TEST_P(FunctionsOfSums, Softmax) {
  const BoundAttrs attrs{{"axis", int64_t{1}}};
  EXPECT_EQ(run(Op::kBiasSoftmax, {&x, &bias}, attrs, x).bytes(), run(Op::kSoftmax, {&sum}, attrs, x).bytes());
}

INSTANTIATE_TEST_SUITE_P(DTypes, FunctionsOfSums, testing::Values(DType::kF32, DType::kBF16, DType::kF16, DType::kF64),
                         [](const auto& info) { return std::string(name(info.param)); });

}  // namespace
}  // namespace lowtide
