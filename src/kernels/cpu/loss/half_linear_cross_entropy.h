// Gradients of a linear layer of bf16 or f16 whose logits are there: the list of the room has it, loss.cpp the list.
#pragma once

#include "kernels/cpu/gemm/half_gemm.h"
#include "kernels/cpu/loss/loss_rows.h"
#include "opset/logit_panels.h"

namespace lowtide::cpu {

// A panel of classes goes all the way before the next one begins, as sums over rows, which are rounded once, are whole
// then:  dz of the panel, rounded;  dW, dbias of the panel = dz^T x, column sums of dz;  dx += dz W, in f32.
// Panels are cut where a product's sum may be: everything has the bits of the single steps.
struct HalfLinearLossGradTerms : LossTerms {
  explicit HalfLinearLossGradTerms(const BoundCall& call)
      : HalfLinearLossGradTerms(call, rows_of(call.inputs[1]), call.inputs[1].dtype) {}
  HalfLinearLossGradTerms(const BoundCall& call, Rows logits, DType stored);

  DType dtype;
  int64_t inner, panel;  // columns of x and W; classes
  // Bytes: of dz, of dx in f32, of the column sums, of the products' own.
  int64_t dz_bytes, dx_bytes, sum_bytes, gemm_bytes;
};

const char* supports_half_linear_cross_entropy_grad(const KernelQuery& query);
int64_t half_linear_cross_entropy_grad_scratch(const BoundCall& call);
KernelStatus half_linear_cross_entropy_grad(const KernelCall& call, const HalfLinearLossGradTerms& terms);

// The same where logits are kept in panels already (opset/logit_panels.h), most of them where dW goes: a panel's part
// of dW is written when its logits are in dz.
struct HalfPanelLossGradTerms : HalfLinearLossGradTerms {
  explicit HalfPanelLossGradTerms(const BoundCall& call);
  LogitPanels places;
};
const char* supports_half_panel_cross_entropy_grad(const KernelQuery& query);
int64_t half_panel_cross_entropy_grad_scratch(const BoundCall& call);
KernelStatus half_panel_cross_entropy_grad(const KernelCall& call, const HalfPanelLossGradTerms& terms);

// Forward of it: all panels, then the loss of their rows, which are put together some at a time.
struct HalfPanelLossTerms : LossTerms {
  explicit HalfPanelLossTerms(const BoundCall& call);

  HalfGemm product(int64_t panel) const;  // without addresses
  DType dtype;
  int64_t inner, block;  // columns of x and W; rows put together at a time
  LogitPanels places;
  // Bytes: of that block, of losses and log-sum-exps, of the bias in `dtype`, of the products' own.
  int64_t wide_bytes, row_bytes, bias_bytes, gemm_bytes;
};
const char* supports_half_panel_cross_entropy(const KernelQuery& query);
int64_t half_panel_cross_entropy_scratch(const BoundCall& call);
KernelStatus half_panel_cross_entropy(const KernelCall& call, const HalfPanelLossTerms& terms);

}  // namespace lowtide::cpu
