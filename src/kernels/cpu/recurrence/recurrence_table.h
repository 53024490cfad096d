// What recurrence_isa.cpp hands to Recurrence: products of some rows by a matrix that is packed once for all steps, and
// one row's part of a step.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace lowtide::cpu {

// One row of a step, H units. What is not wanted, or not there, is null.
template <class Number>
struct StepRow {
  const Number *gates, *of_state, *bias;  // of the input, of the state, of the state's part of a GRU
  Number *state, *memory;                 // in place
  Number *y, *memories, *activated;       // activated may be gates
};

// The same of the gradient. dstate and dmemory are what flows in from the step behind, and become what flows on, but
// for the product of of_state by the weight, which is to be added.
template <class Number>
struct StepRowGrad {
  const Number *dy, *y, *memories, *activated;
  const Number *state, *memory;  // before the step
  Number *dstate, *dmemory;
  Number *dgates, *of_state;  // dgates may be activated; only a GRU has of_state apart
};

template <class Number>
struct RecurrenceLoops {
  int64_t row_unit;  // rows that cost as much as fewer
  // Numbers of a packed matrix.
  int64_t (*packed)(int64_t depth, int64_t cols);
  // B[depth, cols] is w, or if `transposed` w^T, whose stored rows are `stride` apart.
  void (*pack)(const Number* w, int64_t stride, bool transposed, int64_t depth, int64_t cols, Number* panels);
  // C[rows, cols] = or += A[rows, depth] B; rows of C lie side by side. Sums go by blocks of 256 of the depth.
  void (*multiply)(int64_t rows, int64_t cols, int64_t depth, const Number* a, int64_t a_row, const Number* panels,
                   Number* c, bool adds);
  // By CellKind.
  void (*forward[4])(const StepRow<Number>& row, int64_t units);
  void (*backward[4])(const StepRowGrad<Number>& row, int64_t units);
};

struct RecurrenceTable {
  RecurrenceLoops<float> floats;
  RecurrenceLoops<double> doubles;
  template <class Number>
  const RecurrenceLoops<Number>& loops() const;
};
template <>
inline const RecurrenceLoops<float>& RecurrenceTable::loops() const {
  return floats;
}
template <>
inline const RecurrenceLoops<double>& RecurrenceTable::loops() const {
  return doubles;
}

LT_ISA_TABLES(RecurrenceTable, recurrence_table)

}  // namespace lowtide::cpu
