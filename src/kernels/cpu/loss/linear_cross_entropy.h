// Cross entropy of a linear layer without its logits: the list of the room has it, loss.cpp the list.
#pragma once

#include "kernels/cpu/loss/loss_rows.h"

namespace lowtide::cpu {

// A block of rows goes all the way, from logits to its part of the gradients, before the next one begins:
//   z = x W^T + bias;  loss of z;  z = dz;  dx = z W;  dW += z^T x;  dbias += column sums of z
// A product's sum over k goes by blocks of kGemmDepth rows too (packed_gemm.h), and sums over rows by fewer: so dW is
// what one product over all rows gives, bit for bit, and so is everything else.
constexpr int64_t kLossRows = 256;

struct LinearLossTerms : LossTerms {
  explicit LinearLossTerms(const BoundCall& call)
      : LinearLossTerms(call, {call.inputs[0].sizes[0], call.inputs[1].sizes[0]}, call.inputs[0].sizes[1]) {}
  LinearLossTerms(const BoundCall& call, Rows logits, int64_t inner);
  int64_t inner;         // columns of x and W
  int64_t block;         // rows, a multiple of kLossRows unless there are fewer
  int64_t gemm_scratch;  // bytes, the last part of the scratch
};
struct LinearLossGradTerms : LinearLossTerms {
  explicit LinearLossGradTerms(const BoundCall& call)
      : LinearLossTerms(call, rows_of(call.inputs[1]), call.inputs[4].sizes[1]) {}
};

const char* supports_linear_cross_entropy(const KernelQuery& query);
int64_t linear_cross_entropy_scratch(const BoundCall& call);
KernelStatus linear_cross_entropy(const KernelCall& call, const LinearLossTerms& terms);

// The same where the logits are there: dz from them and their log-sum-exp, plus what else flows into them.
const char* supports_linear_cross_entropy_grad(const KernelQuery& query);
int64_t linear_cross_entropy_grad_scratch(const BoundCall& call);
KernelStatus linear_cross_entropy_grad(const KernelCall& call, const LinearLossGradTerms& terms);

}  // namespace lowtide::cpu
