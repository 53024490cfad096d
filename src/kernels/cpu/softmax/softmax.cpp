// Softmax over the last axis. A row is summed whole by one thread in the order of simd.h's row_sum.
//   y = exp(x) / sum(exp(x)), NaN for a row of -inf alone, as in PyTorch;  dx = y (dy - sum(y dy))
//   y = x - log(sum(exp(x)));  dx = dy - exp(y) sum(dy)
#include "kernels/cpu/block_rows.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/softmax/softmax_table.h"
#include "kernels/cpu/supports.h"
#include "kernels/kernel_lines.h"
#include "kernels/rooms.h"

namespace lowtide::cpu {
namespace {

// Of the first input: x has the shape of y, dy and dx.
struct LastAxis : Rows {
  explicit LastAxis(const BoundCall& call) : Rows(rows_of(call.inputs[0])) {}
  static Rows rows_of(const TensorRef& x) { return x.rank == 0 ? Rows{1, 1} : rows_at(x, x.rank - 1); }
};

// `cost`: about the nanoseconds of an element.
KernelStatus run(const KernelCall& call, const Rows& at, SoftmaxTable::Rows loop, double cost) {
  const float* x = input_floats(call, 0);
  float* y = output_floats(call, 0);
  for_row_chunks(at.rows, at.cols, cost,
                 [&](int64_t r, int64_t n) { loop(x + r * at.cols, y + r * at.cols, n, at.cols); });
  return nullptr;
}

KernelStatus run_grad(const KernelCall& call, const Rows& at, SoftmaxTable::GradRows loop, double cost) {
  const float *dy = input_floats(call, 0), *y = input_floats(call, 1);
  float* dx = output_floats(call, 0);
  for_row_chunks(at.rows, at.cols, cost,
                 [&](int64_t r, int64_t n) { loop(y + r * at.cols, dy + r * at.cols, dx + r * at.cols, n, at.cols); });
  return nullptr;
}

KernelStatus softmax(const KernelCall& call, const LastAxis& rows) {
  return run(call, rows, softmax_table().softmax, 0.8);
}
KernelStatus log_softmax(const KernelCall& call, const LastAxis& rows) {
  return run(call, rows, softmax_table().log_softmax, 0.8);
}
KernelStatus softmax_grad(const KernelCall& call, const LastAxis& rows) {
  return run_grad(call, rows, softmax_table().softmax_grad, 0.4);
}
KernelStatus log_softmax_grad(const KernelCall& call, const LastAxis& rows) {
  return run_grad(call, rows, softmax_table().log_softmax_grad, 0.8);
}

const char* supports_last_axis(const KernelQuery& query) {
  const int rank = query.inputs[0].rank;
  if (rank > 0 && query.attrs->i("axis") != rank - 1) return "not over the last axis";
  return supports_f32(query);
}

}  // namespace

std::span<const Kernel> softmax_kernels() {
  static constexpr Kernel kernels[] = {
#include "kernels/cpu/softmax/list.inc"
  };
  return kernels;
}

}  // namespace lowtide::cpu
