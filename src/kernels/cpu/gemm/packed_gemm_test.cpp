#include "kernels/cpu/gemm/packed_gemm.h"

#include <cmath>

#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

void multiply_with(int64_t scratch_bytes, const Gemm& call) {
  std::vector<float> scratch(scratch_bytes / 4 + 16, NAN);
  const auto address = reinterpret_cast<uintptr_t>(scratch.data());
  packed_gemm(call, reinterpret_cast<void*>((address + 63) / 64 * 64), scratch_bytes);
}

TEST(Gemm, AgreesWithDoublesInEveryOrientation) {
  struct Case {
    int64_t m, n, k, batches = 1;
    float alpha = 1, beta = 0;
    bool bias = false;
  };
  for (const Case& c : {Case{1, 1, 1},
                        {1, 1037, 600, 1, 0.5f, 2},
                        {1, 70, 261, 2, 1, 0, true},
                        {300, 531, 1, 1, 0.5f, 2},
                        {17, 40, 1, 3},
                        {3, 17, 5},
                        {17, 3, 0, 1, 1, 0.5f},
                        {65, 33, 513, 1, 1, 0, true},
                        {200, 40, 17, 3, 0.5f, 1},
                        {13, 1025, 300, 1, 2, -0.5f},
                        {513, 65, 64, 2, 1, 0, true},
                        {400, 1100, 3}}) {
    for (int orientation = 0; orientation < 4; ++orientation) {
      SCOPED_TRACE(testing::Message() << c.m << " x " << c.n << " x " << c.k << " orientation " << orientation);
      Gemm call;
      call.m = c.m;
      call.n = c.n;
      call.k = c.k;
      call.transpose_a = orientation & 1;
      call.transpose_b = orientation & 2;
      call.alpha = c.alpha;
      call.beta = c.beta;
      call.batches = c.batches;
      call.a_stride = (call.transpose_a ? c.m : c.k) + 3;
      call.b_stride = (call.transpose_b ? c.k : c.n) + 5;
      call.c_stride = c.n + 7;
      call.a_batch = (call.transpose_a ? c.k : c.m) * call.a_stride;
      call.b_batch = c.batches == 2 ? 0 : (call.transpose_b ? c.n : c.k) * call.b_stride;
      call.c_batch = c.m * call.c_stride;
      const std::vector<float> a = random_floats(call.a_batch * c.batches + 1, 1),
                               b = random_floats((c.n + c.k) * call.b_stride * c.batches, 2),
                               before = random_floats(call.c_batch * c.batches, 3), bias = random_floats(c.n, 4);
      call.a = a.data();
      call.b = b.data();
      if (c.bias) call.bias = bias.data();
      for_every_run(
          [&] {
            std::vector<float> out = before;
            call.c = out.data();
            multiply_with(packed_gemm_scratch_bytes(call, parallel_threads()), call);
            return out;
          },
          [&](const std::vector<float>& out) {
            expect_close(
                out.data(), out.size(),
                [&](int64_t at) -> double {
                  const int64_t batch = at / call.c_batch, i = at % call.c_batch / call.c_stride,
                                j = at % call.c_stride;
                  if (j >= c.n) return before[at];
                  double sum = c.bias ? bias[j] : c.beta == 0 ? 0 : double{c.beta} * before[at];
                  for (int64_t k = 0; k < c.k; ++k) {
                    const int64_t in_a = call.transpose_a ? k * call.a_stride + i : i * call.a_stride + k;
                    const int64_t in_b = call.transpose_b ? j * call.b_stride + k : k * call.b_stride + j;
                    sum += double{c.alpha} * a[batch * call.a_batch + in_a] * b[batch * call.b_batch + in_b];
                  }
                  return sum;
                },
                1e-6, 1e-4);
          });
    }
  }
}

// What a plan computes for some rows at a time, the last of them alone, has the bits of the whole product.
TEST(Gemm, OneRowHasTheBitsThatItHasAmongOthers) {
  constexpr int64_t kRows = 15, kCols = 75, kInner = 533;
  const std::vector<float> a = random_floats(kRows * kInner, 1), b = random_floats(kCols * kInner, 2);
  for (int orientation = 0; orientation < 4; ++orientation) {
    SCOPED_TRACE(orientation);
    Gemm call;
    call.n = call.c_stride = kCols;
    call.k = kInner;
    call.transpose_a = orientation & 1;
    call.transpose_b = orientation & 2;
    call.alpha = 0.75f;
    call.a_stride = call.transpose_a ? kRows : kInner;
    call.b_stride = call.transpose_b ? kInner : kCols;
    call.b = b.data();
    const auto product = [&](int64_t first, int64_t rows) {
      std::vector<float> out(rows * kCols);
      call.m = rows;
      call.a = a.data() + first * (call.transpose_a ? 1 : kInner);
      call.c = out.data();
      multiply_with(packed_gemm_scratch_bytes(call, 1), call);
      return out;
    };
    const auto last = [&] {
      const std::vector<float> all = product(0, kRows), one = product(kRows - 1, 1);
      EXPECT_TRUE(std::equal(one.begin(), one.end(), all.end() - kCols));
      return one;
    };
    for_every_run(last, [](const std::vector<float>&) {});
  }
}

TEST(Gemm, LessScratchChangesNoBit) {
  constexpr int64_t kRows = 450, kCols = 1100, kInner = 300;
  const std::vector<float> a = random_floats(kRows * kInner, 1), b = random_floats(kCols * kInner, 2);
  for (int orientation = 0; orientation < 4; ++orientation) {
    SCOPED_TRACE(orientation);
    Gemm call;
    call.m = kRows;
    call.n = call.c_stride = kCols;
    call.k = kInner;
    call.transpose_a = orientation & 1;
    call.transpose_b = orientation & 2;
    call.a_stride = call.transpose_a ? kRows : kInner;
    call.b_stride = call.transpose_b ? kInner : kCols;
    call.a = a.data();
    call.b = b.data();
    const auto product = [&](int64_t scratch_bytes) {
      std::vector<float> out(kRows * kCols);
      call.c = out.data();
      multiply_with(scratch_bytes, call);
      return out;
    };
    const auto compared = [&] {
      const int64_t all = packed_gemm_scratch_bytes(call, parallel_threads());
      const int64_t least = least_packed_gemm_scratch_bytes(call, parallel_threads());
      EXPECT_LT(least, all);
      std::vector<float> whole = product(all);
      for (const int64_t bytes : {least, (least + all) / 2 / 64 * 64, least_packed_gemm_scratch_bytes(call, 1)})
        EXPECT_TRUE(product(bytes) == whole) << bytes;
      return whole;
    };
    for_every_run(compared, [](const std::vector<float>&) {});
  }
}

}  // namespace
}  // namespace lowtide::cpu
