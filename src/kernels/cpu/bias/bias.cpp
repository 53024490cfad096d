// Functions of x + bias: the sum lives in a buffer of one run, in the cache, rounded to the dtype of x. The loops are
// those of the rooms of the functions.
#include <algorithm>

#include "kernels/cpu/bias/double_sums.h"
#include "kernels/cpu/float_runs.h"
#include "kernels/cpu/pointwise/pointwise_table.h"
#include "kernels/cpu/random/random_table.h"
#include "kernels/cpu/softmax/softmax_table.h"
#include "kernels/cpu/supports.h"
#include "kernels/kernel_lines.h"
#include "kernels/rooms.h"
#include "kernels/task_slots.h"

namespace lowtide::cpu {

namespace {

constexpr OperandRules kActivation = every_input(Accept::kAny, {.layout = OutputLayout::kFollowsInput, .takes = 0});
constexpr OperandRules kActivationGrad =
    every_input(Accept::kAny, {.layout = OutputLayout::kFollowsInput, .takes = 1, .else_takes = 0});
constexpr OperandRules kDropout = every_input(Accept::kRowMajor, {.takes = 0, .else_takes = 2});
constexpr OperandRules kSoftmax = {.inputs = {Accept::kRowMajor, Accept::kAny}, .outputs = {{{.takes = 0}}}};

// A place in a tensor and how it goes on.
struct Run {
  const TensorRef& tensor;
  int64_t offset, step;
};

// to = a + b, n <= kRun elements
void add_run(DType computes, const Run& a, const Run& b, int64_t n, float* to) {
  const int64_t at[2] = {a.offset, b.offset}, steps[2] = {a.step, b.step};
  run_pair(pointwise_loops().binary[static_cast<int>(BinaryOp::kAdd)], a.tensor, b.tensor, at, steps, n, to, computes);
}

// x + bias in `sum`, or where x lies if there is no bias.
const float* read_sum(DType computes, const Run& x, const TensorRef* bias, int64_t bias_offset, int64_t bias_step,
                      int64_t n, float* sum) {
  if (bias == nullptr) return read_as(computes, x.tensor, x.offset, x.step, n, sum);
  add_run(computes, x, {*bias, bias_offset, bias_step}, n, sum);
  round_run(computes, sum, n);
  return sum;
}

// The bias of a run as floats, in `buffer` unless it lies so; null where there is none or it stands still.
const float* read_bias(DType computes, const TensorRef* bias, int64_t offset, int64_t step, int64_t n, float* buffer) {
  return bias == nullptr || step != 1 ? nullptr : read_as(computes, *bias, offset, 1, n, buffer);
}

// x, bias?, y
struct Sum : OperandRuns<2> {
  explicit Sum(const BoundCall& call)
      : OperandRuns(call, kRun), computes(computed_dtype(*call.attrs, call.inputs[0].dtype)) {}
  DType computes;
};
// dy, x, bias?, dx
struct SumGrad : OperandRuns<3> {
  explicit SumGrad(const BoundCall& call)
      : OperandRuns(call, kRun), computes(computed_dtype(*call.attrs, call.inputs[1].dtype)) {}
  DType computes;
};

template <UnaryOp op>
KernelStatus function_of_sum(const KernelCall& call, const Sum& runs) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  const TensorRef* bias = input(call, 1);
  const auto loop = pointwise_loops().unary[static_cast<int>(op)];
  const StoredLoops& in_memory = pointwise_loops(stored_as(y.dtype));
  const auto of_sum = op == UnaryOp::kGelu ? in_memory.gelu_of_sum : in_memory.fast_gelu_of_sum;
  const bool alike = x.dtype == y.dtype && runs.computes == y.dtype;
  runs.for_each([&](int64_t, const auto& at, const auto& steps, int64_t n) {
    float sum[kRun], out[kRun];
    if (alike && steps[0] == 1 && steps[2] == 1) {
      void* to = address(y, at[2]);
      if (bias == nullptr) return in_memory.unary[static_cast<int>(op)](address(x, at[0]), to, n, 0, 0);
      if (const float* added = read_bias(runs.computes, bias, at[1], steps[1], n, sum))
        return of_sum(address(x, at[0]), added, to, n);
    }
    float* to = target(y, at[2], steps[2], n, out);
    loop(read_sum(runs.computes, {x, at[0], steps[0]}, bias, at[1], steps[1], n, sum), to, n, 0, 0);
    write(y, at[2], steps[2], n, to);
  });
  return nullptr;
}

template <UnaryGradOp op>
KernelStatus gradient_of_sum(const KernelCall& call, const SumGrad& runs) {
  const TensorRef &dy = call.inputs[0], &x = call.inputs[1], &dx = call.outputs[0];
  const TensorRef* bias = input(call, 2);
  const auto loop = pointwise_loops().unary_grad[static_cast<int>(op)];
  const StoredLoops& in_memory = pointwise_loops(stored_as(dx.dtype));
  const auto of_sum = op == UnaryGradOp::kGelu ? in_memory.gelu_of_sum_grad : in_memory.fast_gelu_of_sum_grad;
  const bool alike = dy.dtype == dx.dtype && x.dtype == dx.dtype && runs.computes == dx.dtype;
  runs.for_each([&](int64_t, const auto& at, const auto& steps, int64_t n) {
    float sum[kRun], in[kRun], out[kRun];
    if (alike && steps[0] == 1 && steps[1] == 1 && steps[3] == 1) {
      const void *from = address(x, at[1]), *grad = address(dy, at[0]);
      void* to = address(dx, at[3]);
      if (bias == nullptr) return in_memory.unary_grad[static_cast<int>(op)](from, grad, to, n, 0);
      if (const float* added = read_bias(runs.computes, bias, at[2], steps[2], n, sum))
        return of_sum(from, added, grad, to, n);
    }
    float* to = target(dx, at[3], steps[3], n, out);
    const float* saved = read_sum(runs.computes, {x, at[1], steps[1]}, bias, at[2], steps[2], n, sum);
    loop(saved, read_as(runs.computes, dy, at[0], steps[0], n, in), to, n, 0);
    write(dx, at[3], steps[3], n, to);
  });
  return nullptr;
}

struct Dropout {
  explicit Dropout(const BoundCall& call)
      : ratio(call.attrs->f("ratio")),
        stream(static_cast<uint64_t>(call.attrs->i("stream"))),
        begin(static_cast<uint64_t>(call.attrs->i("first_element", 0))),
        numel(call.outputs[0].numel()),
        cols(call.inputs[1].numel()),
        computes(computed_dtype(*call.attrs, call.inputs[0].dtype)) {}
  double ratio;
  uint64_t stream, begin;
  int64_t numel, cols;
  DType computes;
};

// Row-major: element i of the mask is element i of memory. Chunks begin at multiples of 64, as the mask's words do.
KernelStatus bias_dropout(const KernelCall& call, const Dropout& drawn) {
  const TensorRef &x = call.inputs[0], &bias = call.inputs[1], &y = call.outputs[0];
  const TensorRef* residual = input(call, 2);
  const DropoutRule rule = dropout_rule(drawn.ratio, call.random_key, drawn.stream);
  const int64_t numel = drawn.numel, cols = drawn.cols;
  const auto sum_up = pointwise_loops(stored_as(x.dtype)).sum;
  const auto drop = random_table().dropout_of_floats[stored_as(y.dtype)];
  // What the loop of sums rounds to, and that of dropout and the residual.
  const bool sums_alike = x.dtype == drawn.computes, alike = y.dtype == drawn.computes;
  constexpr int64_t kChunk = 1024;
  static_assert(kChunk % 64 == 0 && kChunk <= kRun);
  parallel_for((numel + kChunk - 1) / kChunk, 16, [&](int64_t begin, int64_t end) {
    float values[kChunk], out[kChunk];
    for (int64_t first = begin * kChunk; first < std::min(numel, end * kChunk); first += kChunk) {
      const int64_t n = std::min(kChunk, numel - first);
      const uint64_t word = drawn.begin + static_cast<uint64_t>(first);
      for (int64_t i = 0, length; i < n; i += length) {
        const int64_t col = (first + i) % cols;
        length = std::min(n - i, cols - col);
        if (sums_alike) {
          sum_up(address(x, first + i), read_as(drawn.computes, bias, col, 1, length, out), values + i, length);
        } else {
          add_run(drawn.computes, {x, first + i, 1}, {bias, col, 1}, length, values + i);
        }
      }
      if (!sums_alike) round_run(drawn.computes, values, n);
      if (alike && (residual == nullptr || residual->dtype == y.dtype)) {
        drop(rule, word, values, residual == nullptr ? nullptr : address(*residual, first), address(y, first), n);
        continue;
      }
      float* to = target(y, first, 1, n, out);
      if (residual == nullptr) {
        random_table().dropout[kStoredF32][kStoredF32](rule, word, values, to, n);
      } else {
        random_table().dropout[kStoredF32][kStoredF32](rule, word, values, values, n);
        round_run(drawn.computes, values, n);
        float in[kRun];
        const float* added = read_as(drawn.computes, *residual, first, 1, n, in);
        pointwise_loops().binary[static_cast<int>(BinaryOp::kAdd)][0](values, added, to, n);
      }
      write(y, first, 1, n, to);
    }
  });
  return nullptr;
}

const char* supports_bias_softmax(const KernelQuery& query) {
  if (query.attrs->i("axis") != query.inputs[0].rank - 1) return "not over the last axis";
  return supports_float(query);
}

// Rows of bf16 and f16 are computed in scratch of the thread.
bool needs_scratch(const TensorRef& x) { return x.dtype != DType::kF32; }
int64_t rows_per_task(const TensorRef& x) { return std::max<int64_t>(1, 32768 / (x.sizes[x.rank - 1] + 1)); }

int64_t bias_softmax_scratch(const BoundCall& call) {
  const TensorRef& x = call.inputs[0];
  if (!needs_scratch(x)) return 0;
  return x.sizes[x.rank - 1] * static_cast<int64_t>(sizeof(float)) * parallel_threads();
}

// Rows of x, bias and y.
struct SumRows : RowWalk<3> {
  explicit SumRows(const BoundCall& call)
      : RowWalk(call, call.inputs[0], call.inputs[0].rank - 1, {&call.inputs[0], &call.inputs[1], &call.outputs[0]}),
        rows_each(rows_per_task(call.inputs[0])) {}
  int64_t rows_each;
};

KernelStatus bias_softmax(const KernelCall& call, const SumRows& walk) {
  const TensorRef &x = call.inputs[0], &bias = call.inputs[1], &y = call.outputs[0];
  const int64_t cols = walk.size, step = walk.steps[1], each = walk.rows_each;
  if (walk.count == 0 || cols == 0) return nullptr;
  const auto add_and_scale = [&](const auto& at, float* sum) {
    for (int64_t i = 0; i < cols; i += kRun) {
      const int64_t n = std::min(kRun, cols - i);
      add_run(x.dtype, {x, at[0] + i, 1}, {bias, at[1] + i * step, step}, n, sum + i);
      round_run(x.dtype, sum + i, n);
    }
    softmax_table().softmax(sum, sum, 1, cols);
  };
  if (!needs_scratch(x)) {
    walk.for_each(each, [&](const auto& at) { add_and_scale(at, y.as<float>() + at[2]); });
    return nullptr;
  }
  const int64_t tasks = (walk.count + each - 1) / each;
  run_tasks(tasks, cols, call.scratch, call.scratch_bytes, tasks == 1, [&](int64_t task, float* sum) {
    walk.rows.for_each(task * each, std::min(walk.count, (task + 1) * each), [&](int64_t, const auto& at) {
      add_and_scale(at, sum);
      for (int64_t i = 0; i < cols; i += kRun) write(y, at[2] + i, 1, std::min(kRun, cols - i), sum + i);
    });
  });
  return nullptr;
}

}  // namespace

std::span<const Kernel> bias_kernels() {
  static constexpr Kernel kernels[] = {
#include "kernels/cpu/bias/list.inc"
  };
  return kernels;
}

}  // namespace lowtide::cpu
