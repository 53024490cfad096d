#include "kernels/cpu/cross_entropy.h"

#include "kernels/cpu/block_rows.h"
#include "kernels/cpu/cross_entropy_table.h"

namespace lowtide::cpu {
namespace {

bool counts(int64_t label, int64_t classes, int64_t ignore_index) {
  return label != ignore_index && label >= 0 && label < classes;
}

}  // namespace

int64_t first_bad_label(const int64_t* labels, int64_t rows, int64_t classes, int64_t ignore_index) {
  for (int64_t r = 0; r < rows; ++r) {
    if (labels[r] != ignore_index && !counts(labels[r], classes, ignore_index)) return r;
  }
  return -1;
}

void cross_entropy(const float* logits, const int64_t* labels, const CrossEntropyOptions& options, float* row_loss,
                   float* lse, int64_t rows, int64_t classes) {
  const float s = options.label_smoothing;
  for_row_chunks(rows, classes, 0.6, [&](int64_t first, int64_t n) {
    for (int64_t r = first; r < first + n; ++r) {
      const float* x = logits + r * classes;
      float mean = 0;
      lse[r] = cross_entropy_table().log_sum_exp(x, classes, s == 0 ? nullptr : &mean);
      if (!counts(labels[r], classes, options.ignore_index)) {
        row_loss[r] = 0;
      } else if (s == 0) {
        row_loss[r] = lse[r] - x[labels[r]];
      } else {
        row_loss[r] = (1 - s) * (lse[r] - x[labels[r]]) + s * (lse[r] - mean);
      }
    }
  });
}

float loss_divisor(LossReduction reduction, const int64_t* labels, int64_t ignore_index, int64_t rows) {
  if (reduction == LossReduction::kSum) return 1;
  return static_cast<float>(rows - std::count(labels, labels + rows, ignore_index));
}

float reduce_loss(LossReduction reduction, const float* row_loss, const int64_t* labels, int64_t ignore_index,
                  int64_t rows) {
  double total = 0;
  for (int64_t r = 0; r < rows; ++r) total += row_loss[r];
  return static_cast<float>(total / loss_divisor(reduction, labels, ignore_index, rows));
}

void cross_entropy_grad(const float* logits, const int64_t* labels, const CrossEntropyOptions& options,
                        const float* lse, const float* row_grad, float scale, float* dlogits, int64_t rows,
                        int64_t classes) {
  const float s = options.label_smoothing;
  for_row_chunks(rows, classes, 0.5, [&](int64_t first, int64_t n) {
    for (int64_t r = first; r < first + n; ++r) {
      float* dx = dlogits + r * classes;
      if (!counts(labels[r], classes, options.ignore_index)) {
        std::fill(dx, dx + classes, 0.0f);
        continue;
      }
      const float g = row_grad == nullptr ? scale : scale * row_grad[r];
      cross_entropy_table().grad(logits + r * classes, dx, classes, lse[r], g, g * s / static_cast<float>(classes));
      dx[labels[r]] -= g * (1 - s);
    }
  });
}

}  // namespace lowtide::cpu
