// Scratch of kernels that work with less of it, from a program in text form.
#include <gtest/gtest.h>

#include "base/parallel.h"
#include "kernels/cpu/gemm/packed_gemm.h"
#include "runtime/control_programs.h"

namespace lowtide {
namespace {

// t = x w; u = t w, where the most is live; y = the sums of u's rows.
constexpr char kTwoProducts[] = R"(symbol "n" 0 dim 0 0 4000
expression [0 0]
expression [0 1]
expression [0 512]
expression [1 0]
expression [1 0 0 2048 4]
expression [0 1048576]
expression [1 0 0 4 4]
input "x" f32 [3 2] [2 1] 0 0
input "w" f32 [2 2] [2 1] 0 0
buffer "x" caller 4 0 0 0 0
buffer "w" caller 5 0 1 1 0
buffer "t" arena 4 0 1 0 0
buffer "u" arena 4 1 2 0 0
buffer "y" output 6 0 0 0 0
operand 0 f32 0 [3 2] [2 1]
operand 1 f32 0 [2 2] [2 1]
operand 2 f32 0 [3 2] [2 1]
operand 3 f32 0 [3 2] [2 1]
operand 4 f32 0 [3] [1]
region "forward" []
step kernel "cpu.MatMul" [0 1] [2] -1 "" 0 "first"
step kernel "cpu.MatMul" [2 1] [3] -1 "" 0 "second"
step kernel "cpu.ReduceSum" [3] [4] -1 "" 0 "ReduceSum"
attr "axes" es [1]
attr "keepdims" b false
output "y" 4 0
contexts 0
constants ""
pack_order []
)";

TEST(Scratch, IsTheLeastWhereMoreWouldMakeThePeak) {
  const Program program = written(kTwoProducts);
  constexpr int64_t kRows = 1500;
  const std::shared_ptr<Binding> binding = bind_program(program, {kRows}, {}, false, {}, {});
  cpu::Gemm gemm;
  gemm.m = kRows;
  gemm.n = gemm.k = gemm.a_stride = gemm.b_stride = gemm.c_stride = 512;
  const int64_t all = cpu::packed_gemm_scratch_bytes(gemm, parallel_threads());
  const int64_t least = cpu::least_packed_gemm_scratch_bytes(gemm, parallel_threads());
  ASSERT_LT(least, all);
  EXPECT_EQ(binding->steps[0].scratch_bytes, all);
  EXPECT_EQ(binding->steps[1].scratch_bytes, least);
  EXPECT_EQ(binding->packing.arenas[0].size_bytes, 2 * kRows * 2048 + least);

  // With it, the sums of an all-ones w are known: 512 times those of x's rows, twice.
  std::vector<float> x(kRows * 512), w(512 * 512, 1.0f);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i / 512 % 7);
  Executor executor(program, {.guard = true});
  const std::vector<float> y = floats(executor.forward(
      std::vector<TensorRef>{row_major(x, DType::kF32, {kRows, 512}), row_major(w, DType::kF32, {512, 512})}, 0,
      nullptr)[0]);
  for (size_t row = 0; row < y.size(); ++row) EXPECT_EQ(y[row], static_cast<float>(row % 7) * 512 * 512 * 512);
}

}  // namespace
}  // namespace lowtide
