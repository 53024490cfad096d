// Gradients of a linear layer of bf16 or f16 whose logits are there: the list of the room has it, loss.cpp the list.
#pragma once

#include "kernels/cpu/gemm/half_gemm.h"
#include "kernels/cpu/loss/loss_rows.h"

namespace lowtide::cpu {

// A panel of classes goes all the way before the next one begins, as sums over rows, which are rounded once, are whole
// then:  dz of the panel, rounded;  dW, dbias of the panel = dz^T x, column sums of dz;  dx += dz W, in f32.
// Panels are cut where a product's sum may be: everything has the bits of the single steps.
struct HalfLinearLossGradTerms : LossTerms {
  explicit HalfLinearLossGradTerms(const BoundCall& call);

  DType dtype;
  int64_t inner, panel;  // columns of x and W; classes
  // Bytes: of dz, of dx in f32, of the column sums, of the products' own.
  int64_t dz_bytes, dx_bytes, sum_bytes, gemm_bytes;
};

const char* supports_half_linear_cross_entropy_grad(const KernelQuery& query);
int64_t half_linear_cross_entropy_grad_scratch(const BoundCall& call);
KernelStatus half_linear_cross_entropy_grad(const KernelCall& call, const HalfLinearLossGradTerms& terms);

}  // namespace lowtide::cpu
