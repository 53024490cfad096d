// Cross entropy of a linear layer without its logits: the list of the room has it, loss.cpp the list.
#pragma once

#include "kernels/cpu/loss/loss_rows.h"
#include "opset/logit_panels.h"

namespace lowtide::cpu {

// A block of rows goes all the way, from logits to its part of the gradients, before the next one begins; its classes
// go by panels, whose logits, dz and part of dW stay in cache:
//   of each panel z = x W^T + bias;  loss of the rows;  of each panel dz;  dW, dbias += dz^T x, column sums;  dx += dz
//   W
// A product's sum over k goes by blocks of kGemmDepth (packed_gemm.h), of which blocks and panels are multiples, and
// sums over rows by fewer: so dW is what one product over all rows gives, bit for bit, and so is everything else.
constexpr int64_t kLossRows = 256;

struct LinearLayerTerms : LossTerms {
  // `block`, `other`: how many rows go at a time.
  LinearLayerTerms(const BoundCall& call, Rows logits, int64_t inner, int64_t block, int64_t other);

  int64_t inner;  // columns of x and W
  // Bytes: of a panel's dz, of the products' own.
  int64_t dz_bytes, gemm_bytes;

  int64_t panel(int64_t block_rows) const;  // its classes
};

struct LinearLossTerms : LinearLayerTerms {
  explicit LinearLossTerms(const BoundCall& call);

  // Rows of the first block and of the others, multiples of kLossRows unless there are fewer. The logits of the first
  // one lie where dW will be, as far as they fit.
  int64_t first_block, block;
  int64_t wide_rows;  // whose logits are put together at a time
  // Bytes: of logits outside of dW, of those rows (where dz comes after them), of losses and log-sum-exps.
  int64_t logit_bytes, wide_bytes, row_bytes;

  LogitPanels places(int64_t first_row, int64_t rows) const {
    const bool is_first = first_row == 0;
    return {rows, classes, has_weight && is_first ? inner : 0, panel(is_first ? first_block : block)};
  }

 private:
  bool has_weight;  // whether dW is wanted
};

struct LinearLossGradTerms : LinearLayerTerms {
  explicit LinearLossGradTerms(const BoundCall& call);
  int64_t block;  // rows, a multiple of kLossRows unless there are fewer
};

const char* supports_linear_cross_entropy(const KernelQuery& query);
int64_t linear_cross_entropy_scratch(const BoundCall& call);
KernelStatus linear_cross_entropy(const KernelCall& call, const LinearLossTerms& terms);

// The same where the logits are there: dz from them and their log-sum-exp, plus what else flows into them.
const char* supports_linear_cross_entropy_grad(const KernelQuery& query);
int64_t linear_cross_entropy_grad_scratch(const BoundCall& call);
KernelStatus linear_cross_entropy_grad(const KernelCall& call, const LinearLossGradTerms& terms);

}  // namespace lowtide::cpu
