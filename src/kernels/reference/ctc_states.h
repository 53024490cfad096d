// What kernels of CtcLoss are prepared to. See states.h.
#pragma once

#include "kernels/reference/states.h"

namespace lowtide::reference {

// log_probs[T, N, C] and its targets, at operands `first` to `first` + 3.
struct CtcSequences {
  CtcSequences(const BoundCall& call, size_t first)
      : blank(call.attrs->i("blank")),
        zero_infinity(call.attrs->b("zero_infinity")),
        normalised(call.attrs->b("normalised")),
        first_operand(first),
        steps(call.inputs[first].sizes[0]),
        count(call.inputs[first].sizes[1]),
        classes(call.inputs[first].sizes[2]),
        is_padded(call.inputs[first + 1].rank == 2),
        room(call.inputs[first + 1].sizes[is_padded ? 1 : 0]) {}

  // Why these targets and lengths are none, or nullptr.
  KernelStatus refusal(const KernelCall& call) const;

  const TensorRef& operand(const KernelCall& call, size_t index) const { return call.inputs[first_operand + index]; }
  int64_t input_length(const KernelCall& call, int64_t b) const { return number(operand(call, 2), b); }
  int64_t target_length(const KernelCall& call, int64_t b) const { return number(operand(call, 3), b); }

  int64_t blank;
  bool zero_infinity, normalised;
  size_t first_operand;
  int64_t steps, count, classes;
  bool is_padded;
  int64_t room;  // targets of a sequence if padded, else of all of them

 private:
  static int64_t number(const TensorRef& lengths, int64_t b) { return get_int(lengths, b * lengths.strides[0]); }
};
struct CtcForward : CtcSequences {
  explicit CtcForward(const BoundCall& call) : CtcSequences(call, 0) {}
};
struct CtcBackward : CtcSequences {
  explicit CtcBackward(const BoundCall& call) : CtcSequences(call, 1) {}
};

}  // namespace lowtide::reference
