// Values computed by hand, and what must be true of the lists. Agreement with PyTorch is tested from Python.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/prepared.h"

namespace lowtide {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kReferenceInf = std::numeric_limits<float>::infinity();

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>) return DType::kF32;
  if constexpr (std::is_same_v<T, double>) return DType::kF64;
  if constexpr (std::is_same_v<T, int64_t>) return DType::kI64;
  if constexpr (std::is_same_v<T, int32_t>) return DType::kI32;
  if constexpr (std::is_same_v<T, uint8_t>) return DType::kBool;
}

template <class T>
TensorRef tensor(std::vector<T>& values, std::vector<int64_t> sizes) {
  TensorRef ref;
  ref.data = values.data();
  ref.dtype = dtype_of<T>();
  ref.rank = static_cast<int>(sizes.size());
  ref.present = true;
  int64_t stride = 1;
  for (int i = ref.rank - 1; i >= 0; --i) {
    ref.sizes[i] = sizes[i];
    ref.strides[i] = stride;
    stride *= sizes[i];
  }
  return ref;
}

KernelStatus run(Op op, const std::vector<TensorRef>& inputs, const std::vector<TensorRef>& outputs,
                 const BoundAttrs& attrs = {}, uint64_t key = 7) {
  const Kernel& kernel = kernels_of(op).back();
  EXPECT_STREQ(kernel.provider, "reference");
  BoundCall call{{inputs, outputs}, &attrs};
  call.random_key = key;
  std::vector<double> scratch;
  if (kernel.scratch_bytes) {
    call.scratch_bytes = kernel.scratch_bytes(call);
    scratch.resize(call.scratch_bytes / 8 + 1);
    call.scratch = scratch.data();
  }
  return run_once(kernel, call);
}

// One f32 in, one f32 out of the same shape.
std::vector<float> map(Op op, std::vector<float> x, const BoundAttrs& attrs = {}) {
  std::vector<float> y(x.size());
  EXPECT_EQ(
      run(op, {tensor(x, {static_cast<int64_t>(x.size())})}, {tensor(y, {static_cast<int64_t>(y.size())})}, attrs),
      nullptr);
  return y;
}

template <class T>
std::vector<T> zip(Op op, std::vector<T> a, std::vector<T> b, const BoundAttrs& attrs = {}) {
  const int64_t n = static_cast<int64_t>(a.size());
  std::vector<T> y(n);
  EXPECT_EQ(run(op, {tensor(a, {n}), tensor(b, {n})}, {tensor(y, {n})}, attrs), nullptr);
  return y;
}

TEST(KernelLists, EveryOpThatComputesEndsWithAReference) {
  for (const OpInfo& op : all_ops()) {
    const bool computes =
        op.category != OpCategory::kView && op.category != OpCategory::kCall && op.category != OpCategory::kControl;
    const auto kernels = kernels_of(op.op);
    ASSERT_EQ(!kernels.empty(), computes) << op.name;
    if (computes) {
      EXPECT_STREQ(kernels.back().provider, "reference") << op.name;
      // Of logits that lie in another tensor's memory, and of the op that puts them there, the place is all there is.
      const bool has_places =
          op.op == Op::kPanelLinearCrossEntropyLoss || op.op == Op::kPanelLinearCrossEntropyLossGrad;
      const Accept any = has_places ? Accept::kRowMajor : Accept::kAny;
      for (size_t i = 0; i < 8; ++i) EXPECT_EQ(kernels.back().rules.input(i), any) << op.name << " " << i;
    }
  }
}

TEST(KernelLists, NamesAreUniqueAndFound) {
  for (const Kernel& kernel : all_kernels()) EXPECT_EQ(find_kernel(kernel.name), &kernel) << kernel.name;
  EXPECT_EQ(find_kernel("reference.Nothing"), nullptr);
}

TEST(Reference, RoundsHalfToEvenAndKeepsNan) {
  EXPECT_EQ(map(Op::kRound, {0.5f, 1.5f, 2.5f, -0.5f, -1.5f}), (std::vector<float>{0, 2, 2, 0, -2}));
  EXPECT_TRUE(std::isnan(map(Op::kRelu, {kNan})[0]));
  EXPECT_TRUE(std::isnan(map(Op::kClip, {kNan}, {{"min", 0.0}})[0]));
  EXPECT_EQ(map(Op::kSign, {kNan, -2, 0, 3}), (std::vector<float>{0, -1, 0, 1}));
}

TEST(Reference, DividesAsPythonDoes) {
  EXPECT_EQ(zip<int64_t>(Op::kDiv, {7, -7, 7, -7}, {2, 2, -2, -2}), (std::vector<int64_t>{3, -3, -3, 3}));
  EXPECT_EQ(zip<int64_t>(Op::kFloorDiv, {7, -7, 7, -7}, {2, 2, -2, -2}), (std::vector<int64_t>{3, -4, -4, 3}));
  EXPECT_EQ(zip<int64_t>(Op::kMod, {7, -7, 7, -7}, {4, 4, -4, -4}), (std::vector<int64_t>{3, 1, -1, -3}));
  EXPECT_EQ(zip<int64_t>(Op::kMod, {7, -7, 7, -7}, {4, 4, -4, -4}, {{"fmod", true}}),
            (std::vector<int64_t>{3, -3, 3, -3}));
  EXPECT_EQ(zip<float>(Op::kMod, {-7, 7}, {4, -4}), (std::vector<float>{1, -1}));
  EXPECT_EQ(zip<float>(Op::kFloorDiv, {-7, 1}, {2, 0}), (std::vector<float>{-4, kReferenceInf}));
}

TEST(Reference, IntegerDivisionByZeroNamesTheOp) {
  std::vector<int64_t> a{1}, b{0}, y{5};
  const KernelStatus status = run(Op::kDiv, {tensor(a, {1}), tensor(b, {1})}, {tensor(y, {1})});
  ASSERT_NE(status, nullptr);
  EXPECT_EQ(std::string(status).rfind("Div", 0), 0u);
  EXPECT_EQ(y[0], 5);
}

TEST(Reference, MaximaHandOnNan) {
  for (Op op : {Op::kMax, Op::kMin}) {
    EXPECT_TRUE(std::isnan(zip<float>(op, {kNan}, {1})[0]));
    EXPECT_TRUE(std::isnan(zip<float>(op, {1}, {kNan})[0]));
  }
  std::vector<float> x{1, kNan, 3}, y(1);
  run(Op::kReduceMax, {tensor(x, {3})}, {tensor(y, {})}, {{"axes", std::vector<int64_t>{0}}, {"keepdims", false}});
  EXPECT_TRUE(std::isnan(y[0]));
}

TEST(Reference, ReducesOverChosenAxesAndKeepsThem) {
  std::vector<float> x{1, 2, 3, 4, 5, 6, 7, 8}, y(2);
  run(Op::kReduceSum, {tensor(x, {2, 2, 2})}, {tensor(y, {1, 2, 1})},
      {{"axes", std::vector<int64_t>{0, 2}}, {"keepdims", true}});
  EXPECT_EQ(y, (std::vector<float>{1 + 2 + 5 + 6, 3 + 4 + 7 + 8}));
}

TEST(Reference, ArgMaxTakesTheFirst) {
  std::vector<float> x{2, 5, 5, 1};
  std::vector<int64_t> y(1);
  run(Op::kArgMax, {tensor(x, {4})}, {tensor(y, {})}, {{"axis", int64_t{0}}, {"keepdims", false}});
  EXPECT_EQ(y[0], 1);
}

TEST(Reference, SortsStablyWithNanLargest) {
  std::vector<float> x{3, kNan, 1, 3, 1}, values(5);
  std::vector<int64_t> order(5);
  run(Op::kSort, {tensor(x, {5})}, {tensor(values, {5}), tensor(order, {5})},
      {{"axis", int64_t{0}}, {"descending", false}});
  EXPECT_EQ(order, (std::vector<int64_t>{2, 4, 0, 3, 1}));
  run(Op::kSort, {tensor(x, {5})}, {tensor(values, {5}), tensor(order, {5})},
      {{"axis", int64_t{0}}, {"descending", true}});
  EXPECT_EQ(order, (std::vector<int64_t>{1, 0, 3, 2, 4}));
}

TEST(Reference, SoftmaxOfNothingButMinusInfinityIsNan) {
  const BoundAttrs axis{{"axis", int64_t{0}}};
  EXPECT_TRUE(std::isnan(map(Op::kSoftmax, {-kReferenceInf, -kReferenceInf}, axis)[0]));
  EXPECT_EQ(map(Op::kSoftmax, {-kReferenceInf, 0, 0}, axis), (std::vector<float>{0, 0.5f, 0.5f}));
}

TEST(Reference, CrossEntropyOfIgnoredLabelsIsNanAndOfBadOnesAnError) {
  std::vector<float> logits{1, 2, 3, 4}, loss(1), lse(2);
  std::vector<int64_t> labels{-100, -100};
  const BoundAttrs attrs{{"reduction", std::string("mean")}, {"ignore_index", int64_t{-100}}, {"label_smoothing", 0.0}};
  const std::vector<TensorRef> outputs{tensor(loss, {}), tensor(lse, {2})};
  EXPECT_EQ(run(Op::kSoftmaxCrossEntropyLoss, {tensor(logits, {2, 2}), tensor(labels, {2})}, outputs, attrs), nullptr);
  EXPECT_TRUE(std::isnan(loss[0]));
  labels = {-100, 1};
  run(Op::kSoftmaxCrossEntropyLoss, {tensor(logits, {2, 2}), tensor(labels, {2})}, outputs, attrs);
  EXPECT_NEAR(loss[0], std::log(1 + std::exp(-1.0)), 1e-6);
  EXPECT_NEAR(lse[0], std::log(std::exp(1.0) + std::exp(2.0)), 1e-6);
  labels = {0, 2};
  EXPECT_NE(run(Op::kSoftmaxCrossEntropyLoss, {tensor(logits, {2, 2}), tensor(labels, {2})}, outputs, attrs), nullptr);
}

TEST(Reference, AttentionOfAFullyMaskedQueryIsZero) {
  std::vector<float> q{1, 2}, k{1, 1, 2, 2}, v{3, 4, 5, 6}, y(2), lse(1);
  std::vector<uint8_t> mask{0, 0};
  const BoundAttrs attrs{{"is_causal", false}, {"scale", 1.0}, {"dropout", 0.0}, {"stream", int64_t{0}}};
  run(Op::kAttention, {tensor(q, {1, 1, 1, 2}), tensor(k, {1, 1, 2, 2}), tensor(v, {1, 1, 2, 2}), tensor(mask, {1, 2})},
      {tensor(y, {1, 1, 1, 2}), tensor(lse, {1, 1, 1})}, attrs);
  EXPECT_EQ(y, (std::vector<float>{0, 0}));
  EXPECT_EQ(lse[0], -kReferenceInf);
}

TEST(Reference, ConvolvesByHand) {
  std::vector<float> x{1, 2, 3, 4, 5, 6, 7, 8, 9}, w{1, 0, 0, 1}, y(4);
  const std::vector<int64_t> ones{1, 1}, none{0, 0, 0, 0};
  run(Op::kConv, {tensor(x, {1, 1, 3, 3}), tensor(w, {1, 1, 2, 2})}, {tensor(y, {1, 1, 2, 2})},
      {{"strides", ones}, {"pads", none}, {"dilations", ones}, {"group", int64_t{1}}});
  EXPECT_EQ(y, (std::vector<float>{1 + 5, 2 + 6, 4 + 8, 5 + 9}));
}

TEST(Reference, GatherRefusesIndicesOutsideAndWritesNothing) {
  std::vector<float> data{1, 2, 3}, y{0};
  std::vector<int64_t> indices{-1};
  const BoundAttrs axis{{"axis", int64_t{0}}};
  EXPECT_EQ(run(Op::kGather, {tensor(data, {3}), tensor(indices, {1})}, {tensor(y, {1})}, axis), nullptr);
  EXPECT_EQ(y[0], 3);
  indices[0] = 3;
  EXPECT_NE(run(Op::kGather, {tensor(data, {3}), tensor(indices, {1})}, {tensor(y, {1})}, axis), nullptr);
  EXPECT_EQ(y[0], 3);
}

TEST(Reference, CastTruncatesWrapsAndTests) {
  std::vector<double> x{-1.9, 300, 0.25, kNan};
  std::vector<int32_t> whole(4);
  std::vector<uint8_t> truth(4);
  run(Op::kCast, {tensor(x, {4})}, {tensor(whole, {4})}, {{"to", DType::kI32}});
  EXPECT_EQ((std::vector<int32_t>(whole.begin(), whole.begin() + 3)), (std::vector<int32_t>{-1, 300, 0}));
  run(Op::kCast, {tensor(x, {4})}, {tensor(truth, {4})}, {{"to", DType::kBool}});
  EXPECT_EQ(truth, (std::vector<uint8_t>{1, 1, 1, 1}));
  std::vector<int64_t> large{(int64_t{1} << 53) + 1, (int64_t{1} << 24) + 1};
  std::vector<float> rounded(2);
  run(Op::kCast, {tensor(large, {2})}, {tensor(rounded, {2})}, {{"to", DType::kF32}});
  EXPECT_EQ(rounded[1], 16777216.0f);
}

TEST(Reference, BroadcastsStridesThatRepeat) {
  std::vector<float> a{1, 2}, b{10, 20, 30}, y(6);
  run(Op::kAdd, {tensor(a, {2, 1}), tensor(b, {3})}, {tensor(y, {2, 3})});
  EXPECT_EQ(y, (std::vector<float>{11, 21, 31, 12, 22, 32}));
}

TEST(Reference, DropoutRepeatsByKeyAndStreamAndKeepsTheExpectation) {
  std::vector<float> x(10000, 1.0f), y(x.size()), again(x.size()), other(x.size());
  const BoundAttrs attrs{{"ratio", 0.25}, {"stream", int64_t{3}}}, another{{"ratio", 0.25}, {"stream", int64_t{4}}};
  run(Op::kDropout, {tensor(x, {100, 100})}, {tensor(y, {100, 100})}, attrs);
  run(Op::kDropoutGrad, {tensor(x, {100, 100})}, {tensor(again, {100, 100})}, attrs);
  run(Op::kDropout, {tensor(x, {100, 100})}, {tensor(other, {100, 100})}, another);
  EXPECT_EQ(y, again);
  EXPECT_NE(y, other);
  double sum = 0;
  for (float value : y) sum += value;
  EXPECT_NEAR(sum / 10000, 1.0, 0.03);
}

}  // namespace
}  // namespace lowtide
