// Cross entropy of f32 logits [rows, classes] with class labels, keeping one log-sum-exp a row and no probabilities.
#pragma once

#include <cstdint>

namespace lowtide::cpu {

struct CrossEntropyOptions {
  int64_t ignore_index = -100;  // rows with this label count for nothing
  float label_smoothing = 0;    // s: the target is (1 - s) at the label plus s / classes everywhere
};

// The first row whose label is neither ignore_index nor in [0, classes), or -1. The functions below treat such rows as
// ignored; PyTorch refuses them.
int64_t first_bad_label(const int64_t* labels, int64_t rows, int64_t classes, int64_t ignore_index);

// lse = log(sum(exp(x)));  loss = lse - (1 - s) x[label] - s mean(x), 0 for ignored rows.
void cross_entropy(const float* logits, const int64_t* labels, const CrossEntropyOptions& options, float* row_loss,
                   float* lse, int64_t rows, int64_t classes);

enum class LossReduction : uint8_t { kSum, kMean };
// The mean is over rows that are not ignored: NaN if there is none, as in PyTorch.
float reduce_loss(LossReduction reduction, const float* row_loss, const int64_t* labels, int64_t ignore_index,
                  int64_t rows);
// What reduce_loss divides by: 1 for the sum.
float loss_divisor(LossReduction reduction, const int64_t* labels, int64_t ignore_index, int64_t rows);

// dlogits[r] = g (exp(x - lse) - target), g = scale, times row_grad[r] unless that is null; 0 for ignored rows.
// dlogits may be logits: then the logits are overwritten.
void cross_entropy_grad(const float* logits, const int64_t* labels, const CrossEntropyOptions& options,
                        const float* lse, const float* row_grad, float scale, float* dlogits, int64_t rows,
                        int64_t classes);

}  // namespace lowtide::cpu
