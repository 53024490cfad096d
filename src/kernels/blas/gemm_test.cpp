// What the kernels ask of the process's BLAS, which here is plain loops, and what comes of it.
#include <cmath>

#include "kernels/blas/plain_gemm.h"
#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

class BlasProducts : public testing::Test {
 protected:
  void SetUp() override { set_plain_gemm(); }
  void TearDown() override { set_libraries({}); }
};

// [batches, rows, cols] of `from`, or of its transpose.
double at(const std::vector<float>& from, int64_t rows, int64_t cols, bool transposed, int64_t i, int64_t j) {
  return transposed ? from[j * rows + i] : from[i * cols + j];
}

constexpr int64_t kRows = 5, kInner = 7, kCols = 4;

// alpha a b + beta c of one batch
double product(const std::vector<float>& a, bool transpose_a, const std::vector<float>& b, bool transpose_b, int64_t i,
               int64_t j) {
  double sum = 0;
  for (int64_t k = 0; k < kInner; ++k)
    sum += at(a, kRows, kInner, transpose_a, i, k) * at(b, kInner, kCols, transpose_b, k, j);
  return sum;
}

TEST_F(BlasProducts, GemmTakesTransposesFactorsAndAnAddendThatIsBroadcast) {
  const std::vector<float> a = random_floats(kRows * kInner, 1), b = random_floats(kInner * kCols, 2),
                           c = random_floats(kCols, 3);
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      std::vector<float> y(kRows * kCols, NAN);
      BoundAttrs attrs;
      attrs.set("transA", transpose_a);
      attrs.set("transB", transpose_b);
      attrs.set("alpha", 0.5);
      attrs.set("beta", -2.0);
      const auto sizes = [](int64_t rows, int64_t cols, bool transposed) {
        return transposed ? std::vector<int64_t>{cols, rows} : std::vector<int64_t>{rows, cols};
      };
      EXPECT_EQ(run_kernel("blas.Gemm",
                           {floats(a.data(), sizes(kRows, kInner, transpose_a)),
                            floats(b.data(), sizes(kInner, kCols, transpose_b)), floats(c.data(), {kCols})},
                           {floats(y.data(), {kRows, kCols})}, attrs),
                nullptr);
      expect_close(
          y.data(), kRows * kCols,
          [&](int64_t i) {
            return 0.5 * product(a, transpose_a, b, transpose_b, i / kCols, i % kCols) - 2.0 * c[i % kCols];
          },
          1e-6, 1e-6);
    }
  }
}

// Every other column of a wider matrix: no leading stride says that.
TEST_F(BlasProducts, OperandsThatBlasCannotReadGoThroughScratch) {
  const std::vector<float> a = random_floats(kRows * kInner, 4), b = random_floats(kInner * kCols, 5);
  std::vector<float> wide(kRows * kInner * 2, NAN), y(kRows * kCols * 3, 99);
  for (size_t i = 0; i < a.size(); ++i) wide[2 * i] = a[i];
  EXPECT_EQ(run_kernel("blas.MatMul",
                       {floats(wide.data(), {kRows, kInner}, {2 * kInner, 2}), floats(b.data(), {kInner, kCols})},
                       {floats(y.data(), {kRows, kCols}, {3 * kCols, 3})}, {}),
            nullptr);
  expect_close(
      y.data(), kRows * kCols * 3,
      [&](int64_t i) { return i % 3 != 0 ? 99 : product(a, false, b, false, i / 3 / kCols, i / 3 % kCols); }, 1e-6,
      1e-6);
}

TEST_F(BlasProducts, ABatchAgainstOneMatrixIsOneProduct) {
  const std::vector<float> a = random_floats(3 * kRows * kInner, 6), b = random_floats(kInner * kCols, 7);
  std::vector<float> y(3 * kRows * kCols, NAN);
  plain_products = 0;
  EXPECT_EQ(run_kernel("blas.MatMul", {floats(a.data(), {3, kRows, kInner}), floats(b.data(), {kInner, kCols})},
                       {floats(y.data(), {3, kRows, kCols})}, {}),
            nullptr);
  EXPECT_EQ(plain_products, 1);
  expect_close(
      y.data(), 3 * kRows * kCols, [&](int64_t i) { return product(a, false, b, false, i / kCols, i % kCols); }, 1e-6,
      1e-6);
}

TEST_F(BlasProducts, DoublesAreDoubles) {
  const std::vector<float> a = random_floats(kRows * kInner, 8), b = random_floats(kInner * kCols, 9);
  const std::vector<double> wide_a(a.begin(), a.end()), wide_b(b.begin(), b.end());
  std::vector<double> wide_y(kRows * kCols, NAN);
  EXPECT_EQ(run_kernel("blas.MatMul",
                       {tensor(wide_a.data(), DType::kF64, {kRows, kInner}),
                        tensor(wide_b.data(), DType::kF64, {kInner, kCols})},
                       {tensor(wide_y.data(), DType::kF64, {kRows, kCols})}, {}),
            nullptr);
  for (int64_t i = 0; i < kRows * kCols; ++i)
    EXPECT_NEAR(wide_y[i], product(a, false, b, false, i / kCols, i % kCols), 1e-13);
}

TEST_F(BlasProducts, SumsOfNothingAreTheAddendAndCallNobody) {
  std::vector<float> y(kRows * kCols, NAN);
  const float none = 0;
  plain_products = 0;
  EXPECT_EQ(run_kernel("blas.MatMul", {floats(&none, {kRows, 0}), floats(&none, {0, kCols})},
                       {floats(y.data(), {kRows, kCols})}, {}),
            nullptr);
  EXPECT_EQ(plain_products, 0);
  EXPECT_EQ(y, std::vector<float>(kRows * kCols, 0.0f));
}

TEST_F(BlasProducts, AreRefusedWhereNoBlasIsLoaded) {
  set_libraries({});
  const OperandInfo matrix{DType::kF32, 2, true};
  const OperandInfo both[] = {matrix, matrix};
  const BoundAttrs attrs;
  EXPECT_STREQ(find_kernel("blas.MatMul")->supports({Op::kMatMul, both, {&matrix, 1}, &attrs}), "no BLAS is loaded");
}

}  // namespace
}  // namespace lowtide::cpu
