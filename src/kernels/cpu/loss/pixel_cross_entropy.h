// Cross entropy of images, [N, classes, ...]: positions side by side, the classes of one a plane apart.
#pragma once

#include "kernels/cpu/loss/loss_rows.h"

namespace lowtide::cpu {

struct PixelTerms : LossTerms {
  PixelTerms(const BoundCall& call, size_t logits);
  int64_t inner;  // positions of an image
  int64_t run;    // of these that are computed at a time
  int64_t runs;
};
struct PixelLossTerms : PixelTerms {
  explicit PixelLossTerms(const BoundCall& call) : PixelTerms(call, 0) {}
};
struct PixelLossGradTerms : PixelTerms {
  explicit PixelLossGradTerms(const BoundCall& call) : PixelTerms(call, 1) {}
};

int64_t pixel_cross_entropy_scratch(const BoundCall& call);
KernelStatus pixel_cross_entropy(const KernelCall& call, const PixelLossTerms& terms);
int64_t pixel_cross_entropy_grad_scratch(const BoundCall& call);
KernelStatus pixel_cross_entropy_grad(const KernelCall& call, const PixelLossGradTerms& terms);

}  // namespace lowtide::cpu
