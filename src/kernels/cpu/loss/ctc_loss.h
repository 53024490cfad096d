// CtcLoss and its gradient, sequences side by side.
#pragma once

#include "kernels/kernel.h"
#include "kernels/reference/ctc_states.h"

namespace lowtide::cpu {

const char* supports_ctc_loss(const KernelQuery& query);  // f32 and f64

int64_t ctc_loss_scratch(const BoundCall& call);
KernelStatus ctc_loss(const KernelCall& call, const reference::CtcForward& all);

int64_t ctc_loss_grad_scratch(const BoundCall& call);
KernelStatus ctc_loss_grad(const KernelCall& call, const reference::CtcBackward& all);

}  // namespace lowtide::cpu
