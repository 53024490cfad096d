// Cross entropy of rows of f32 logits with class labels:
//   lse = log(sum(exp(x)));  loss = lse - (1 - s) x[label] - s mean(x), s = label_smoothing
//   dx = g (exp(x - lse) - target), target = (1 - s) at the label plus s / classes everywhere
// Rows whose label is ignore_index count for nothing.
#pragma once

#include <algorithm>

#include "kernels/cpu/block_rows.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/loss/loss_table.h"

namespace lowtide::cpu {

constexpr const char* kBadLabel = "SoftmaxCrossEntropyLoss: a label is neither a class nor ignore_index";

// Of images, [N, classes, ...], a row is what one position has of every class.
inline Rows rows_of(const TensorRef& logits) {
  if (logits.rank == 1) return {1, logits.sizes[0]};
  return {logits.sizes[0] * product_of_sizes(logits, 2, logits.rank), logits.sizes[1]};
}

// What the loss and its gradient are asked for.
struct LossTerms {
  int64_t rows, classes, ignore_index;
  float smoothing;
  bool whole, mean;  // reduced to one number; over the rows that count

  explicit LossTerms(const BoundCall& call, size_t logits = 0) : LossTerms(call, rows_of(call.inputs[logits])) {}
  LossTerms(const BoundCall& call, Rows logits)
      : rows(logits.rows),
        classes(logits.cols),
        ignore_index(call.attrs->i("ignore_index")),
        smoothing(static_cast<float>(call.attrs->f("label_smoothing"))),
        whole(call.attrs->s("reduction") != "none"),
        mean(call.attrs->s("reduction") == "mean") {}
};

// The terms with the labels of one call.
struct Loss : LossTerms {
  const int64_t* labels;
  int64_t counted = 0;  // rows with a label

  Loss(const LossTerms& terms, const TensorRef& labels_of_rows)
      : LossTerms(terms), labels(labels_of_rows.as<int64_t>()) {
    if (mean) counted = rows - std::count(labels, labels + rows, ignore_index);
  }

  bool has_bad_label() const {
    return !std::all_of(labels, labels + rows,
                        [this](int64_t label) { return label == ignore_index || (label >= 0 && label < classes); });
  }
  // What the sum is divided by: NaN comes of a mean over no row, as in PyTorch.
  float divisor() const { return mean ? static_cast<float>(counted) : 1; }

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

  // g is dloss over the divisor, or dloss[r] of each row; dx may be x. lse has an entry for every row.
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

// How many rows of bf16 or f16 logits are widened at a time: some for each thread, 3 MB at GPT-2's 50,257 classes; of
// few classes more.
inline int64_t loss_block_rows(const Rows& logits) {
  constexpr int64_t kBlockFloats = 1 << 18;
  return std::max<int64_t>(
      1, std::min(logits.rows, std::max<int64_t>(16, kBlockFloats / std::max<int64_t>(1, logits.cols))));
}
inline int64_t loss_block_floats(const Rows& logits) { return loss_block_rows(logits) * logits.cols; }

}  // namespace lowtide::cpu
