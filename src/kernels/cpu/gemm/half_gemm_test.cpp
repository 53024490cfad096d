#include "kernels/cpu/gemm/half_gemm.h"

#include <cmath>

#include "base/half.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

uint16_t narrowed(DType dtype, float value) {
  return dtype == DType::kBF16 ? BFloat16(value).bits : Float16(value).bits;
}
float as_float(DType dtype, uint16_t value) {
  return dtype == DType::kBF16 ? float{std::bit_cast<BFloat16>(value)} : float{std::bit_cast<Float16>(value)};
}

std::vector<uint16_t> random_halves(DType dtype, int64_t n, uint32_t seed) {
  std::vector<uint16_t> values;
  for (float value : random_floats(n, seed)) values.push_back(narrowed(dtype, value));
  return values;
}

std::vector<uint16_t> run(HalfGemm call, std::vector<uint16_t> out) {
  call.c = out.data();
  const int64_t bytes = half_gemm_scratch_bytes(call, parallel_threads());
  std::vector<float> scratch(bytes / 4 + 16, NAN);
  const auto address = reinterpret_cast<uintptr_t>(scratch.data());
  half_gemm(call, reinterpret_cast<void*>((address + 63) / 64 * 64), bytes);
  return out;
}

TEST(HalfGemm, RoundsTheSumOnceInEveryOrientation) {
  struct Case {
    int64_t m, n, k, batches = 1;
    float alpha = 1, beta = 0;
    bool bias = false;
  };
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const Case& c : {Case{1, 1, 1},
                          {3, 17, 5},
                          {65, 33, 1025, 1, 1, 0, true},
                          {200, 40, 17, 3, 0.5f, 1},
                          {13, 1025, 300, 1, 2, -0.5f},
                          {513, 65, 64, 2, 1, 0, true},
                          {1100, 550, 3}}) {
      for (int orientation = 0; orientation < 4; ++orientation) {
        SCOPED_TRACE(testing::Message() << name(dtype) << " " << c.m << " x " << c.n << " x " << c.k << " orientation "
                                        << orientation);
        HalfGemm call;
        call.dtype = dtype;
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
        const std::vector<uint16_t> a = random_halves(dtype, call.a_batch * c.batches + 1, 1),
                                    b = random_halves(dtype, (c.n + c.k) * call.b_stride * c.batches, 2),
                                    before = random_halves(dtype, call.c_batch * c.batches, 3),
                                    bias = random_halves(dtype, c.n, 4);
        call.a = a.data();
        call.b = b.data();
        if (c.bias) call.bias = bias.data();
        const auto wanted = [&](int64_t at) -> double {
          const int64_t batch = at / call.c_batch, i = at % call.c_batch / call.c_stride, j = at % call.c_stride;
          if (j >= c.n) return as_float(dtype, before[at]);
          double sum = c.bias        ? as_float(dtype, bias[j])
                       : c.beta == 0 ? 0
                                     : double{c.beta} * as_float(dtype, before[at]);
          for (int64_t k = 0; k < c.k; ++k) {
            const int64_t in_a = call.transpose_a ? k * call.a_stride + i : i * call.a_stride + k;
            const int64_t in_b = call.transpose_b ? j * call.b_stride + k : k * call.b_stride + j;
            sum += double{c.alpha} * as_float(dtype, a[batch * call.a_batch + in_a]) *
                   as_float(dtype, b[batch * call.b_batch + in_b]);
          }
          return sum;
        };
        std::vector<double> sums(before.size());
        for (size_t at = 0; at < sums.size(); ++at) sums[at] = wanted(static_cast<int64_t>(at));
        for_every_run([&] { return run(call, before); },
                      [&](const std::vector<uint16_t>& out) {
                        std::vector<float> values;
                        for (uint16_t value : out) values.push_back(as_float(dtype, value));
                        // Half a unit in the last place, and what the f32 sums are off.
                        expect_close(
                            values.data(), static_cast<int64_t>(values.size()), [&](int64_t at) { return sums[at]; },
                            (dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11) * 1.001, 1e-4);
                      });
      }
    }
  }
}

// inf, NaN and what overflows are as in f32, on whatever row, column or depth they stand.
TEST(HalfGemm, InfinitiesAndNansStayInTheirRowsAndColumns) {
  constexpr int64_t m = 40, n = 70, k = 50;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    std::vector<uint16_t> a(m * k, narrowed(dtype, 1)), b(k * n, narrowed(dtype, 1));
    a[35 * k + 49] = narrowed(dtype, INFINITY);
    a[7 * k + 20] = narrowed(dtype, NAN);
    b[3 * n + 69] = narrowed(dtype, -INFINITY);
    HalfGemm call;
    call.dtype = dtype;
    call.m = m;
    call.n = n;
    call.k = k;
    call.a = a.data();
    call.a_stride = k;
    call.b = b.data();
    call.b_stride = n;
    call.c_stride = n;
    for_every_run([&] { return run(call, std::vector<uint16_t>(m * n)); },
                  [&](const std::vector<uint16_t>& out) {
                    for (int64_t i = 0; i < m; ++i) {
                      for (int64_t j = 0; j < n; ++j) {
                        const float y = as_float(dtype, out[i * n + j]);
                        const bool is_nan = i == 7 || (i == 35 && j == 69);
                        ASSERT_EQ(std::isnan(y), is_nan) << i << ", " << j;
                        const float wanted = i == 35 ? INFINITY : j == 69 ? -INFINITY : k;
                        ASSERT_TRUE(is_nan || y == wanted) << i << ", " << j << ": " << y;
                      }
                    }
                  });
  }
}

// The instructions that multiply bf16 take denormals for zeros; kernels that widen do not.
TEST(HalfGemm, DenormalsCountAsZerosWhereBf16IsMultipliedAsItIs) {
  const std::vector<uint16_t> a = {1}, b = {narrowed(DType::kBF16, 0x1p100f)};
  HalfGemm call;
  call.m = call.n = call.k = 1;
  call.a = a.data();
  call.b = b.data();
  call.a_stride = call.b_stride = call.c_stride = 1;
  for_every_run([&] { return run(call, {0}); },
                [&](const std::vector<uint16_t>& out) {
                  const float kept = 0x1p-133f * 0x1p100f;
                  EXPECT_EQ(as_float(DType::kBF16, out[0]), isa() >= Isa::kAvx512Bf16 ? 0 : kept);
                });
}

}  // namespace
}  // namespace lowtide::cpu
