// The reference kernels, one per op, named in list.inc: plain loops that take any dtype that the op has and any
// strides. Every other kernel is tested against them.
#pragma once

#include "kernels/kernel.h"
#include "kernels/reference/ctc_states.h"
#include "kernels/reference/moving_states.h"
#include "kernels/reference/norm_states.h"
#include "kernels/reference/recurrent_states.h"
#include "kernels/reference/states.h"

namespace lowtide::reference {

// A state as its kernel takes it.
template <class State>
struct Taken {
  using Type = const State&;
};
template <class Each>
struct Taken<PerOperand<Each>> {
  using Type = std::span<const Each>;
};

#define LT_REFERENCE_LINE(op, function, rules, scratch, ...) \
  KernelStatus function(const KernelCall& call __VA_OPT__(, Taken<__VA_ARGS__>::Type));
#include "kernels/reference/list.inc"

int64_t attention_scratch(const BoundCall& call);
int64_t attention_grad_scratch(const BoundCall& call);
int64_t ctc_loss_scratch(const BoundCall& call);
int64_t ctc_loss_grad_scratch(const BoundCall& call);
int64_t recurrence_scratch(const BoundCall& call);
int64_t recurrence_grad_scratch(const BoundCall& call);
int64_t sort_scratch(const BoundCall& call);
int64_t linear_cross_entropy_scratch(const BoundCall& call);
int64_t linear_cross_entropy_grad_scratch(const BoundCall& call);
int64_t panel_linear_cross_entropy_grad_scratch(const BoundCall& call);

std::span<const Kernel> kernels();

}  // namespace lowtide::reference
