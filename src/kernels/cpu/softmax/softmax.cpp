// Softmax over the last axis, and the list of the room. A row is summed whole by one thread in the order of simd.h's
// row_sum.
//   y = exp(x) / sum(exp(x)), NaN for a row of -inf alone, as in PyTorch;  dx = y (dy - sum(y dy))
//   y = x - log(sum(exp(x)));  dx = dy - exp(y) sum(dy)
#include "kernels/cpu/block_rows.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/float_runs.h"
#include "kernels/cpu/softmax/double_rows_table.h"
#include "kernels/cpu/softmax/plane_softmax.h"
#include "kernels/cpu/softmax/softmax_table.h"
#include "kernels/cpu/supports.h"
#include "kernels/kernel_lines.h"
#include "kernels/rooms.h"
#include "kernels/task_slots.h"

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

bool is_over_last_axis(const KernelQuery& query) {
  const int rank = query.inputs[0].rank;
  return rank == 0 || query.attrs->i("axis") == rank - 1;
}
const char* supports_last_axis(const KernelQuery& query) {
  return is_over_last_axis(query) ? supports_f32(query) : "not over the last axis";
}

// ---- f64

KernelStatus run_doubles(const KernelCall& call, const Rows& at, DoubleRowsTable::Row loop, double cost) {
  const double* x = call.inputs[0].as<double>();
  double* y = call.outputs[0].as<double>();
  for_row_chunks(at.rows, at.cols, cost, [&](int64_t first, int64_t count) {
    for (int64_t row = first; row < first + count; ++row) loop(x + row * at.cols, y + row * at.cols, at.cols);
  });
  return nullptr;
}
KernelStatus run_doubles_grad(const KernelCall& call, const Rows& at, DoubleRowsTable::GradRow loop, double cost) {
  const double *dy = call.inputs[0].as<double>(), *y = call.inputs[1].as<double>();
  double* dx = call.outputs[0].as<double>();
  for_row_chunks(at.rows, at.cols, cost, [&](int64_t first, int64_t count) {
    for (int64_t row = first; row < first + count; ++row)
      loop(dy + row * at.cols, y + row * at.cols, dx + row * at.cols, at.cols);
  });
  return nullptr;
}

KernelStatus double_softmax(const KernelCall& call, const LastAxis& rows) {
  return run_doubles(call, rows, double_rows_table().softmax, 2);
}
KernelStatus double_log_softmax(const KernelCall& call, const LastAxis& rows) {
  return run_doubles(call, rows, double_rows_table().log_softmax, 2);
}
KernelStatus double_softmax_grad(const KernelCall& call, const LastAxis& rows) {
  return run_doubles_grad(call, rows, double_rows_table().softmax_grad, 1);
}
KernelStatus double_log_softmax_grad(const KernelCall& call, const LastAxis& rows) {
  return run_doubles_grad(call, rows, double_rows_table().log_softmax_grad, 2);
}

const char* supports_double_rows(const KernelQuery& query) {
  if (query.inputs[0].dtype != DType::kF64) return "not f64";
  return is_over_last_axis(query) ? nullptr : "not over the last axis";
}

// ---- bf16, f16: a row at a time as floats, in the thread's own scratch

constexpr int64_t kRowsOfATask = 16;

int64_t half_rows_scratch(const BoundCall& call) {
  return 2 * std::max<int64_t>(1, LastAxis(call).cols) * kFloatBytes * parallel_threads();
}

// body(first number of a row, its first floats, its second floats)
template <class Body>
void for_half_rows(const KernelCall& call, const Rows& at, Body body) {
  if (at.rows == 0 || at.cols == 0) return;
  const int64_t tasks = (at.rows + kRowsOfATask - 1) / kRowsOfATask;
  run_tasks(tasks, 2 * at.cols, call.scratch, call.scratch_bytes, at.rows * at.cols < 20000,
            [&](int64_t task, float* own) {
              const int64_t end = std::min(at.rows, (task + 1) * kRowsOfATask);
              for (int64_t row = task * kRowsOfATask; row < end; ++row) body(row * at.cols, own, own + at.cols);
            });
}

KernelStatus run_halves(const KernelCall& call, const Rows& at, SoftmaxTable::Rows loop) {
  for_half_rows(call, at, [&](int64_t first, float* from, float* to) {
    loop(read(call.inputs[0], first, 1, at.cols, from), to, 1, at.cols);
    write(call.outputs[0], first, 1, at.cols, to);
  });
  return nullptr;
}
KernelStatus run_halves_grad(const KernelCall& call, const Rows& at, SoftmaxTable::GradRows loop) {
  for_half_rows(call, at, [&](int64_t first, float* dy, float* y) {
    const float* from = read(call.inputs[0], first, 1, at.cols, dy);
    loop(read(call.inputs[1], first, 1, at.cols, y), from, y, 1, at.cols);
    write(call.outputs[0], first, 1, at.cols, y);
  });
  return nullptr;
}

KernelStatus half_softmax(const KernelCall& call, const LastAxis& rows) {
  return run_halves(call, rows, softmax_table().softmax);
}
KernelStatus half_log_softmax(const KernelCall& call, const LastAxis& rows) {
  return run_halves(call, rows, softmax_table().log_softmax);
}
KernelStatus half_softmax_grad(const KernelCall& call, const LastAxis& rows) {
  return run_halves_grad(call, rows, softmax_table().softmax_grad);
}
KernelStatus half_log_softmax_grad(const KernelCall& call, const LastAxis& rows) {
  return run_halves_grad(call, rows, softmax_table().log_softmax_grad);
}

}  // namespace

std::span<const Kernel> softmax_kernels() {
  static constexpr Kernel kernels[] = {
#include "kernels/cpu/softmax/list.inc"
  };
  return kernels;
}

}  // namespace lowtide::cpu
