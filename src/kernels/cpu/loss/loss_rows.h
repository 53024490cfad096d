// Cross entropy of rows of f32 logits with class labels:
//   lse = log(sum(exp(x)));  loss = lse - (1 - s) x[label] - s mean(x), s = label_smoothing
//   dx = g (exp(x - lse) - target), target = (1 - s) at the label plus s / classes everywhere
// Rows whose label is ignore_index count for nothing. With weights w of classes, whose sum is W:
//   loss = (1 - s) w[label] (lse - x[label]) + s / classes (W lse - sum(w x)), over the weights of labels where it is a
//   mean dx = g ((1 - s) w[label] (exp(x - lse) - 1 at the label) + s / classes (W exp(x - lse) - w))
#pragma once

#include <algorithm>
#include <numeric>

#include "kernels/cpu/block_rows.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/float_runs.h"
#include "kernels/cpu/loss/loss_table.h"
#include "opset/logit_panels.h"

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
  const float* weights;  // of classes; null: all 1
  double all_weights;

  Loss(const LossTerms& terms, const TensorRef& labels_of_rows, const float* weights_of_classes = nullptr)
      : LossTerms(terms), labels(labels_of_rows.as<int64_t>()), weights(weights_of_classes) {
    all_weights = weights == nullptr ? static_cast<double>(classes) : std::accumulate(weights, weights + classes, 0.0);
  }

  bool has_bad_label() const {
    return !std::all_of(labels, labels + rows,
                        [this](int64_t label) { return label == ignore_index || (label >= 0 && label < classes); });
  }
  // What the sum is divided by: NaN comes of a mean over no row, as in PyTorch. Labels are good.
  float divisor() const {
    if (!mean) return 1;
    if (weights == nullptr) return static_cast<float>(rows - std::count(labels, labels + rows, ignore_index));
    double total = 0;
    for (int64_t r = 0; r < rows; ++r) total += labels[r] == ignore_index ? 0 : weights[labels[r]];
    return static_cast<float>(total);
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
        } else if (weights != nullptr) {
          row_loss[r] = (1 - s) * weights[labels[r]] * (lse[r] - row[labels[r]]) + weighted_rest(row, lse[r]);
        } else if (s == 0) {
          row_loss[r] = lse[r] - row[labels[r]];
        } else {
          row_loss[r] = (1 - s) * (lse[r] - row[labels[r]]) + s * (lse[r] - mean_logit);
        }
      }
    });
  }
  // Of a smoothed label, what all classes share.
  float weighted_rest(const float* row, float lse) const {
    if (smoothing == 0) return 0;
    double weighted = 0;
    for (int64_t c = 0; c < classes; ++c) weighted += static_cast<double>(weights[c]) * row[c];
    return static_cast<float>(smoothing / static_cast<double>(classes) * (all_weights * lse - weighted));
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
        if (weights != nullptr) {
          const float of_label = (1 - s) * weights[labels[r]], of_all = s / static_cast<float>(classes);
          const float factor = of_label + of_all * static_cast<float>(all_weights);
          loss_table().grad(x + i * classes, to, classes, lse[r], g * factor, 0);
          for (int64_t c = 0; s != 0 && c < classes; ++c) to[c] -= g * of_all * weights[c];
          to[labels[r]] -= g * of_label;
          continue;
        }
        loss_table().grad(x + i * classes, to, classes, lse[r], g, g * s / static_cast<float>(classes));
        to[labels[r]] -= g * (1 - s);
      }
    });
  }
};

// How many rows of logits are widened or put together at a time: some for each thread, 3 MB at GPT-2's 50,257 classes;
// of few classes more.
inline int64_t loss_block_rows(const Rows& logits) {
  constexpr int64_t kBlockFloats = 1 << 18;
  return std::max<int64_t>(
      1, std::min(logits.rows, std::max<int64_t>(16, kBlockFloats / std::max<int64_t>(1, logits.cols))));
}
inline int64_t loss_block_floats(const Rows& logits) { return loss_block_rows(logits) * logits.cols; }

// Loss::forward of `rows` rows from `first` on whose logits lie in panels of classes, place(p) each: wide_rows of them
// are put together in `wide` at a time.
template <class Place>
void forward_of_panels(const Loss& loss, const LogitPanels& places, Place place, int64_t first, int64_t rows,
                       int64_t wide_rows, float* wide, float* row_loss, float* lse) {
  for (int64_t begin = 0; begin < rows; begin += wide_rows) {
    const int64_t count = std::min(wide_rows, rows - begin);
    parallel_for(count, 1, [&](int64_t from, int64_t to) {
      for (int64_t p = 0; p < places.count(); ++p) {
        const TensorRef panel = place(p);
        const int64_t width = places.width(p);
        for (int64_t r = from; r < to; ++r) {
          float* row = wide + r * loss.classes + p * places.panel;
          const float* logits = read(panel, (begin + r) * width, 1, width, row);
          if (logits != row) std::copy(logits, logits + width, row);
        }
      }
    });
    loss.forward(wide, first + begin, count, row_loss, lse);
  }
}

}  // namespace lowtide::cpu
