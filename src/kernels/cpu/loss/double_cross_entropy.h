// Cross entropy of rows of f64 logits, each of one label, as loss_rows.h has it.
#pragma once

#include "kernels/cpu/loss/loss_rows.h"

namespace lowtide::cpu {

struct DoubleLossGrad : LossTerms {
  explicit DoubleLossGrad(const BoundCall& call) : LossTerms(call, 1) {}
};

const char* supports_double_cross_entropy(const KernelQuery& query);
int64_t double_cross_entropy_scratch(const BoundCall& call);
KernelStatus double_cross_entropy(const KernelCall& call, const LossTerms& terms);
KernelStatus double_cross_entropy_grad(const KernelCall& call, const DoubleLossGrad& terms);

}  // namespace lowtide::cpu
