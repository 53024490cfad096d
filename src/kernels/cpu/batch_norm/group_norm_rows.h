// Group normalisation where channels lie last: rows of channels, by blocks of kRowsPerBlock rows of an image.
#pragma once

#include <utility>

#include "kernels/cpu/batch_norm/group_norm.h"

namespace lowtide::cpu {

// Of each image's groups.
struct GroupStatistics {
  float *mean, *inv_std;
};

// For each image's channels: what its blocks of rows gave, [blocks, channels] of an image after the other, and what its
// rows are multiplied with.
struct RowScratch {
  RowScratch(const Groups& shape, float* from) {
    const int64_t all = shape.images * shape.channels;
    for (float** each : {&a, &b, &c, &mean}) *each = std::exchange(from, from + all);
    first = std::exchange(from, from + all * shape.blocks());
    second = from;
  }
  static int64_t floats(const Groups& shape) { return shape.images * shape.channels * (4 + 2 * shape.blocks()); }

  float *a, *b, *c, *mean;
  float *first, *second;
};

void group_norm_of_rows(const KernelCall& call, const Groups& shape, const float* weight, const float* bias,
                        const GroupStatistics& to, const RowScratch& rows);
// And the sums of each image's channels, for the gradients of weight and bias.
void group_norm_grad_of_rows(const KernelCall& call, const Groups& shape, const float* weight, const float* mean,
                             const float* inv_std, float* sums, float* dots, const RowScratch& rows);

}  // namespace lowtide::cpu
