// Cross entropy of logits [rows, classes] with class labels, keeping one log-sum-exp a row and no probabilities:
//   lse = log(sum(exp(x)));  loss = lse - (1 - s) x[label] - s mean(x), s = label_smoothing
//   dx = g (exp(x - lse) - target), target = (1 - s) at the label plus s / classes everywhere
// Rows whose label is ignore_index count for nothing. bf16 and f16 logits are widened into scratch a block of rows at a
// time, so that an f32 copy of the logits, often the largest tensor of a step, is never there.
#include <algorithm>

#include "kernels/cpu/block_rows.h"
#include "kernels/cpu/copy/copy_table.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/loss/loss_table.h"
#include "kernels/kernel_lines.h"
#include "kernels/rooms.h"

namespace lowtide::cpu {
namespace {

constexpr const char* kBadLabel = "SoftmaxCrossEntropyLoss: a label is neither a class nor ignore_index";

Rows rows_of(const TensorRef& logits) {
  return logits.rank == 1 ? Rows{1, logits.sizes[0]} : Rows{logits.sizes[0], logits.sizes[1]};
}

// What the loss and its gradient are asked for.
struct LossTerms {
  int64_t rows, classes, ignore_index;
  float smoothing;
  bool whole, mean;  // reduced to one number; over the rows that count

  explicit LossTerms(const BoundCall& call, size_t logits = 0)
      : rows(rows_of(call.inputs[logits]).rows),
        classes(rows_of(call.inputs[logits]).cols),
        ignore_index(call.attrs->i("ignore_index")),
        smoothing(static_cast<float>(call.attrs->f("label_smoothing"))),
        whole(call.attrs->s("reduction") != "none"),
        mean(call.attrs->s("reduction") == "mean") {}
};
struct LossGradTerms : LossTerms {
  explicit LossGradTerms(const BoundCall& call) : LossTerms(call, 1) {}
};

// The terms with the labels of one call.
struct Loss : LossTerms {
  const int64_t* labels;

  Loss(const LossTerms& terms, const TensorRef& labels) : LossTerms(terms), labels(labels.as<int64_t>()) {}

  bool has_bad_label() const {
    return !std::all_of(labels, labels + rows,
                        [this](int64_t label) { return label == ignore_index || (label >= 0 && label < classes); });
  }
  // What the sum is divided by: NaN comes of a mean over no row, as in PyTorch.
  float divisor() const {
    return mean ? static_cast<float>(rows - std::count(labels, labels + rows, ignore_index)) : 1;
  }

  // Of the rows [first, first + count), whose logits begin at x. row_loss and lse have an entry for every row.
  void forward(const float* x, int64_t first, int64_t count, float* row_loss, float* lse) const {
    const float s = smoothing;
    for_row_chunks(count, classes, 0.6, [&](int64_t begin, int64_t n) {
      for (int64_t i = begin; i < begin + n; ++i) {
        const int64_t r = first + i;
        const float* row = x + i * classes;
        float mean_logit = 0;
        lse[r] = loss_table().log_sum_exp(row, classes, s == 0 ? nullptr : &mean_logit);
        if (labels[r] == ignore_index) {
          row_loss[r] = 0;
        } else if (s == 0) {
          row_loss[r] = lse[r] - row[labels[r]];
        } else {
          row_loss[r] = (1 - s) * (lse[r] - row[labels[r]]) + s * (lse[r] - mean_logit);
        }
      }
    });
  }
  float reduced(const float* row_loss) const {
    double total = 0;
    for (int64_t r = 0; r < rows; ++r) total += row_loss[r];
    return static_cast<float>(total / divisor());
  }

  // g is dloss over the divisor, or dloss[r] of each row; dx may be x.
  void backward(const float* x, int64_t first, int64_t count, const float* lse, const float* dloss, float* dx) const {
    const float s = smoothing, shared = whole ? *dloss / divisor() : 1.0f;
    for_row_chunks(count, classes, 0.5, [&](int64_t begin, int64_t n) {
      for (int64_t i = begin; i < begin + n; ++i) {
        const int64_t r = first + i;
        float* to = dx + i * classes;
        if (labels[r] == ignore_index) {
          std::fill(to, to + classes, 0.0f);
          continue;
        }
        const float g = whole ? shared : dloss[r];
        loss_table().grad(x + i * classes, to, classes, lse[r], g, g * s / static_cast<float>(classes));
        to[labels[r]] -= g * (1 - s);
      }
    });
  }
};

const char* supports(const KernelQuery& query, bool (*takes)(DType), const char* otherwise) {
  const size_t logits = query.op == Op::kSoftmaxCrossEntropyLoss ? 0 : 1;
  if (query.inputs.size() > logits * 2 + 2 && query.inputs[logits * 2 + 2].present) return "class weights";
  if (query.inputs[logits].rank > 2) return "classes are not the last dim";
  if (!takes(query.inputs[logits].dtype)) return otherwise;
  if (query.inputs[logits + 1].dtype != DType::kI64) return "labels are not i64";
  return nullptr;
}

// ---- f32

const char* supports_cross_entropy(const KernelQuery& query) {
  if (query.inputs[0].dtype != DType::kF32) return "not f32";
  return supports(query, [](DType dtype) { return dtype == DType::kF32; }, "not f32");
}

// Losses and log-sum-exps of the rows, where they are not wanted.
int64_t cross_entropy_scratch(const BoundCall& call) { return 2 * rows_of(call.inputs[0]).rows * kFloatBytes; }

KernelStatus cross_entropy(const KernelCall& call, const LossTerms& terms) {
  const Loss loss(terms, call.inputs[1]);
  if (loss.has_bad_label()) return kBadLabel;
  float* spare = static_cast<float*>(call.scratch);
  float *result = output_floats(call, 0), *lse = output_floats(call, 1);
  float* row_loss = loss.whole || !result ? spare : result;
  loss.forward(input_floats(call, 0), 0, loss.rows, row_loss, lse ? lse : spare + loss.rows);
  if (loss.whole && result) *result = loss.reduced(row_loss);
  return nullptr;
}

KernelStatus cross_entropy_grad(const KernelCall& call, const LossGradTerms& terms) {
  const Loss loss(terms, call.inputs[2]);
  if (loss.has_bad_label()) return kBadLabel;
  loss.backward(input_floats(call, 1), 0, loss.rows, input_floats(call, 3), input_floats(call, 0),
                output_floats(call, 0));
  return nullptr;
}

// ---- bf16, f16

constexpr int64_t kBlock = 64;  // rows: enough for every thread, 13 MB at GPT-2's 50,257 classes

int64_t block_floats(const Rows& logits) { return std::min(logits.rows, kBlock) * logits.cols; }

const char* supports_half_logits(const KernelQuery& query) { return supports(query, is_half, "neither bf16 nor f16"); }

void widen(const TensorRef& logits, const Loss& loss, int64_t first, int64_t count, float* to) {
  const auto loop = logits.dtype == DType::kBF16 ? copy_table().bf16_to_f32 : copy_table().f16_to_f32;
  parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    loop(logits.as<uint16_t>() + (first + begin) * loss.classes, to + begin * loss.classes,
         (end - begin) * loss.classes);
  });
}
void narrow(const float* from, const Loss& loss, int64_t first, int64_t count, const TensorRef& to) {
  const auto loop = to.dtype == DType::kBF16 ? copy_table().f32_to_bf16 : copy_table().f32_to_f16;
  parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    loop(from + begin * loss.classes, to.as<uint16_t>() + (first + begin) * loss.classes, (end - begin) * loss.classes);
  });
}

int64_t half_logits_scratch(const BoundCall& call) {
  const Rows logits = rows_of(call.inputs[0]);
  return (block_floats(logits) + 2 * logits.rows) * kFloatBytes;
}

KernelStatus cross_entropy_of_half(const KernelCall& call, const LossTerms& terms) {
  const Loss loss(terms, call.inputs[1]);
  if (loss.has_bad_label()) return kBadLabel;
  float* wide = static_cast<float*>(call.scratch);
  float* spare = wide + block_floats(rows_of(call.inputs[0]));
  float *result = output_floats(call, 0), *lse = output_floats(call, 1);
  float* row_loss = loss.whole || !result ? spare : result;
  for (int64_t first = 0; first < loss.rows; first += kBlock) {
    const int64_t count = std::min(kBlock, loss.rows - first);
    widen(call.inputs[0], loss, first, count, wide);
    loss.forward(wide, first, count, row_loss, lse ? lse : spare + loss.rows);
  }
  if (loss.whole && result) *result = loss.reduced(row_loss);
  return nullptr;
}

int64_t half_logits_grad_scratch(const BoundCall& call) { return block_floats(rows_of(call.inputs[1])) * kFloatBytes; }

KernelStatus cross_entropy_grad_of_half(const KernelCall& call, const LossGradTerms& terms) {
  const Loss loss(terms, call.inputs[2]);
  if (loss.has_bad_label()) return kBadLabel;
  float* wide = static_cast<float*>(call.scratch);
  for (int64_t first = 0; first < loss.rows; first += kBlock) {
    const int64_t count = std::min(kBlock, loss.rows - first);
    widen(call.inputs[1], loss, first, count, wide);
    loss.backward(wide, first, count, input_floats(call, 3), input_floats(call, 0), wide);
    narrow(wide, loss, first, count, call.outputs[0]);
  }
  return nullptr;
}

}  // namespace

std::span<const Kernel> loss_kernels() {
  static constexpr Kernel kernels[] = {
#include "kernels/cpu/loss/list.inc"
  };
  return kernels;
}

}  // namespace lowtide::cpu
