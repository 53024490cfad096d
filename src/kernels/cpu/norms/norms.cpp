// Layer norm and RMS norm over the rows [rows, cols] that x is from `axis` on, computed in f32; bf16 and f16 are
// widened and rounded a row at a time, in the cache:
//   xhat = (x - mean) inv_std, inv_std = 1 / sqrt(variance + epsilon), y = xhat weight + bias
//   w = dy weight;  dx = inv_std (w - mean_c(w) - xhat mean_c(w xhat));  dweight = sum_r(dy xhat);  dbias = sum_r(dy)
// RMS norm takes mean = 0 and has no bias. An absent weight stands for ones, an absent bias for zeros.
#include "kernels/cpu/block_rows.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/float_runs.h"
#include "kernels/cpu/norms/norms_table.h"
#include "kernels/cpu/supports.h"
#include "kernels/kernel_lines.h"
#include "kernels/rooms.h"
#include "kernels/task_slots.h"

namespace lowtide::cpu {
namespace {

// Of a norm's operand x, and of its gradient's.
struct Norm {
  explicit Norm(const BoundCall& call, size_t x = 0)
      : rows(rows_at(call.inputs[x], call.attrs->i("axis"))),
        epsilon(static_cast<float>(call.attrs->f("epsilon", 0))) {}
  Rows rows;
  float epsilon;
};
struct NormGrad : Norm {
  explicit NormGrad(const BoundCall& call) : Norm(call, 1) {}
};

// What a task needs of scratch, in floats: four rows.
int64_t task_floats(int64_t cols) { return 4 * std::max<int64_t>(cols, 1); }
int64_t task_scratch(int64_t cols) { return aligned(task_floats(cols) * kFloatBytes) * parallel_threads(); }
// About 30 us of work.
int64_t rows_per_task(const Rows& at) { return std::max<int64_t>(1, 65536 / std::max<int64_t>(at.cols, 1)); }

// n floats of an operand, widened into `buffer` where it stores them in 16 bits; null where it is absent.
const float* read_row(const TensorRef* tensor, int64_t offset, int64_t n, float* buffer) {
  return tensor == nullptr ? nullptr : read(*tensor, offset, 1, n, buffer);
}

bool is_wide(const TensorRef* tensor) { return tensor == nullptr || tensor->dtype == DType::kF32; }

struct ForwardOperands {
  const TensorRef &x, *weight, *bias, *y;
  float *mean, *inv_std;
};

// f32 rows at once, others one by one through scratch of the task. rows_from(x, weight, bias, y, first row, rows)
template <class RowsFrom>
void for_forward_rows(const KernelCall& call, const Rows& at, const ForwardOperands& o, RowsFrom rows_from) {
  const auto [rows, cols] = at;
  if (is_wide(&o.x) && is_wide(o.weight) && is_wide(o.bias) && is_wide(o.y)) {
    const auto floats = [](const TensorRef* tensor) { return tensor == nullptr ? nullptr : tensor->as<float>(); };
    float* y = floats(o.y);
    for_row_chunks(rows, cols, 0.4, [&, cols = cols](int64_t r, int64_t n) {
      rows_from(o.x.as<float>() + r * cols, floats(o.weight), floats(o.bias), shifted(y, r * cols), r, n);
    });
    return;
  }
  const int64_t each = rows_per_task(at), tasks = (rows + each - 1) / each;
  run_tasks(tasks, task_floats(cols), call.scratch, call.scratch_bytes, tasks <= 1,
            [&, rows = rows, cols = cols](int64_t task, float* own) {
              const float* weight = read_row(o.weight, 0, cols, own);
              const float* bias = read_row(o.bias, 0, cols, own + cols);
              for (int64_t r = task * each; r < std::min(rows, (task + 1) * each); ++r) {
                const float* x = read(o.x, r * cols, 1, cols, own + 2 * cols);
                float* y = o.y == nullptr ? nullptr : target(*o.y, r * cols, 1, cols, own + 3 * cols);
                rows_from(x, weight, bias, y, r, 1);
                if (o.y != nullptr) write(*o.y, r * cols, 1, cols, y);
              }
            });
}

KernelStatus layer_norm(const KernelCall& call, const Norm& norm) {
  const ForwardOperands o{call.inputs[0],  input(call, 1),         input(call, 2),
                          output(call, 0), output_floats(call, 1), output_floats(call, 2)};
  for_forward_rows(call, norm.rows, o,
                   [&](const auto* x, const auto* weight, const auto* bias, float* y, auto r, auto n) {
                     norms_table().layer_norm(x, weight, bias, y, shifted(o.mean, r), shifted(o.inv_std, r), n,
                                              norm.rows.cols, norm.epsilon);
                   });
  return nullptr;
}

KernelStatus rms_norm(const KernelCall& call, const Norm& norm) {
  const ForwardOperands o{call.inputs[0], input(call, 1), nullptr, output(call, 0), nullptr, output_floats(call, 1)};
  for_forward_rows(call, norm.rows, o, [&](const auto* x, const auto* weight, const auto*, float* y, auto r, auto n) {
    norms_table().rms_norm(x, weight, y, shifted(o.inv_std, r), n, norm.rows.cols, norm.epsilon);
  });
  return nullptr;
}

int64_t norm_scratch(const BoundCall& call) {
  for (const std::span<const TensorRef> operands : {call.inputs, call.outputs})
    for (const TensorRef& tensor : operands)
      if (tensor.present && is_half(tensor.dtype)) return task_scratch(Norm(call).rows.cols);
  return 0;
}

struct GradOperands {
  const TensorRef &dy, &x;
  const float *mean, *inv_std;
  const TensorRef *weight, *dx, *dweight, *dbias;
};

// Some rows; their sums are added to dweight and dbias.
void norm_grad_rows(const GradOperands& g, int64_t cols, int64_t first, int64_t n, float* dweight, float* dbias,
                    float* own) {
  const auto run = norms_table().norm_grad;
  const float* weight = read_row(g.weight, 0, cols, own);
  if (is_wide(&g.dy) && is_wide(&g.x) && is_wide(g.dx)) {
    const float *dy = g.dy.as<float>() + first * cols, *x = g.x.as<float>() + first * cols;
    float* dx = g.dx == nullptr ? nullptr : g.dx->as<float>() + first * cols;
    run(dy, x, weight, shifted(g.mean, first), g.inv_std + first, dx, dweight, dbias, n, cols);
    return;
  }
  for (int64_t r = first; r < first + n; ++r) {
    const float* dy = read(g.dy, r * cols, 1, cols, own + cols);
    const float* x = read(g.x, r * cols, 1, cols, own + 2 * cols);
    float* dx = g.dx == nullptr ? nullptr : target(*g.dx, r * cols, 1, cols, own + 3 * cols);
    run(dy, x, weight, shifted(g.mean, r), g.inv_std + r, dx, dweight, dbias, 1, cols);
    if (g.dx != nullptr) write(*g.dx, r * cols, 1, cols, dx);
  }
}

KernelStatus norm_grad(const KernelCall& call, const NormGrad& norm, const GradOperands& g) {
  const auto [rows, cols] = norm.rows;
  const int64_t weights = g.dweight == nullptr ? 0 : cols, width = weights + (g.dbias == nullptr ? 0 : cols);
  const int64_t blocks = row_blocks(rows);
  // One partial holds dweight's columns, then dbias's, of those that are asked for; then the sums of them all.
  float *partials = static_cast<float*>(call.scratch), *sums = partials + blocks * width;
  char* own = static_cast<char*>(call.scratch) + aligned((blocks + 1) * width * kFloatBytes);
  const int64_t own_bytes = call.scratch_bytes - (own - static_cast<char*>(call.scratch));
  // Several blocks of rows a task, and about 30 us.
  const int64_t each = std::max<int64_t>(1, rows_per_task(norm.rows) / kRowsPerBlock);
  const int64_t tasks = (blocks + each - 1) / each;
  run_tasks(tasks, task_floats(cols), own, own_bytes, tasks <= 1,
            [&, rows = rows, cols = cols](int64_t task, float* room) {
              for (int64_t b = task * each; b < std::min(blocks, (task + 1) * each); ++b) {
                const int64_t first = b * kRowsPerBlock;
                float* partial = partials + b * width;
                std::fill(partial, partial + width, 0.0f);
                norm_grad_rows(g, cols, first, std::min(kRowsPerBlock, rows - first),
                               g.dweight == nullptr ? nullptr : partial,
                               g.dbias == nullptr ? nullptr : partial + weights, room);
              }
            });
  const auto add_up = [&, rows = rows, cols = cols](const TensorRef* to, int64_t column) {
    if (to == nullptr) return;
    float* sum = to->dtype == DType::kF32 ? to->as<float>() : sums + column;
    add_row_blocks(partials + column, rows, width, sum, cols);
    if (to->dtype != DType::kF32) write(*to, 0, 1, cols, sum);
  };
  add_up(g.dweight, 0);
  add_up(g.dbias, weights);
  return nullptr;
}

KernelStatus layer_norm_grad(const KernelCall& call, const NormGrad& norm) {
  return norm_grad(call, norm,
                   {.dy = call.inputs[0],
                    .x = call.inputs[1],
                    .mean = input_floats(call, 2),
                    .inv_std = input_floats(call, 3),
                    .weight = input(call, 4),
                    .dx = output(call, 0),
                    .dweight = output(call, 1),
                    .dbias = output(call, 2)});
}

KernelStatus rms_norm_grad(const KernelCall& call, const NormGrad& norm) {
  return norm_grad(call, norm,
                   {.dy = call.inputs[0],
                    .x = call.inputs[1],
                    .mean = nullptr,
                    .inv_std = input_floats(call, 2),
                    .weight = input(call, 3),
                    .dx = output(call, 0),
                    .dweight = output(call, 1),
                    .dbias = nullptr});
}

int64_t norm_grad_scratch(const BoundCall& call) {
  const Rows at = NormGrad(call).rows;
  const int64_t sums = aligned((row_blocks(at.rows) + 1) * 2 * at.cols * kFloatBytes);
  return sums + task_scratch(at.cols);
}

// Rows of any of the three dtypes, which are computed in f32.
const char* supports_rows(const KernelQuery& query) {
  for (const OperandInfo& operand : query.inputs)
    if (operand.present && !is_readable_as(DType::kF32, operand.dtype)) return "neither f32, bf16 nor f16";
  return computed_dtype(*query.attrs, DType::kF32) == DType::kF32 ? nullptr : "computes another dtype";
}

}  // namespace

std::span<const Kernel> norms_kernels() {
  static constexpr Kernel kernels[] = {
#include "kernels/cpu/norms/list.inc"
  };
  return kernels;
}

}  // namespace lowtide::cpu
