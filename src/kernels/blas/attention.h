// Attention of f64 operands, whose products are those of the BLAS that the process has loaded.
#pragma once

#include "kernels/reference/reference.h"

namespace lowtide::cpu {

// `suits`: rows of all operands have a leading stride that BLAS takes, and there is something to compute. Else the
// reference kernel works.
struct BlasAttention : reference::AttentionTerms {
  explicit BlasAttention(const BoundCall& call);
  bool suits;
};
struct BlasAttentionGrad : reference::AttentionGradTerms {
  explicit BlasAttentionGrad(const BoundCall& call);
  bool suits;
};

const char* supports_blas_attention(const KernelQuery& query);
int64_t blas_attention_scratch(const BoundCall& call);
int64_t blas_attention_grad_scratch(const BoundCall& call);
KernelStatus blas_attention(const KernelCall& call, const BlasAttention& terms);
KernelStatus blas_attention_grad(const KernelCall& call, const BlasAttentionGrad& terms);

}  // namespace lowtide::cpu
