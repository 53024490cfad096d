// What kernels of Recurrence are prepared to. See states.h.
#pragma once

#include "kernels/reference/states.h"
#include "opset/recurrent_cells.h"

namespace lowtide::reference {

// T steps of B rows, H units: sizes of y[T, B, H]. `lengths_operand`: the input that has them, if it is there.
struct Recurrent {
  Recurrent(const BoundCall& call, const TensorRef& steps_of, int64_t units_of, size_t lengths_operand)
      : kind(cell_kind(call.attrs->s("cell"))),
        reverse(call.attrs->b("reverse")),
        lengths_at(lengths_operand),
        steps(steps_of.sizes[0]),
        rows(steps_of.sizes[1]),
        units(units_of) {}

  const RecurrentCell& cell() const { return recurrent_cell(kind); }
  // Why these lengths are none, or nullptr.
  KernelStatus refusal(const KernelCall& call) const;
  int64_t length(const KernelCall& call, int64_t row) const {
    const TensorRef* lengths = input(call, lengths_at);
    return lengths == nullptr ? steps : lengths->as<int64_t>()[row * lengths->strides[0]];
  }
  // The step that comes `turn`-th.
  int64_t step(int64_t turn) const { return reverse ? steps - 1 - turn : turn; }
  // Whether a row has a step before t, which is step_before(t).
  bool has_before(int64_t t, int64_t length) const { return reverse ? t + 1 < length : t > 0; }
  int64_t step_before(int64_t t) const { return reverse ? t + 1 : t - 1; }

  CellKind kind;
  bool reverse;
  size_t lengths_at;
  int64_t steps, rows, units;
};
struct RecurrentForward : Recurrent {
  explicit RecurrentForward(const BoundCall& call) : Recurrent(call, call.inputs[0], call.inputs[2].sizes[1], 5) {}
};
struct RecurrentBackward : Recurrent {
  explicit RecurrentBackward(const BoundCall& call) : Recurrent(call, call.inputs[0], call.inputs[0].sizes[2], 9) {}
};

}  // namespace lowtide::reference
