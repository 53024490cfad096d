// Which steps of a plan may run for some rows at a time, and which dims of their operands are the rows.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "emit/storage.h"
#include "program/program.h"

namespace lowtide {

// An operand of a Program as symbolic sizes.
struct PlacedOperand {
  DType dtype = DType::kF32;
  Shape sizes;
  Storage storage;
};

// Neighbouring dims that together are the rows; none: the operand serves all rows.
struct RowDims {
  int first = 0;
  int count = 0;
  Dim rows_each = 1;  // a dim of batches: of so many rows each
};

struct RowStep {
  std::vector<RowDims> inputs, outputs;  // by operand of the step
  bool adds_up = false;                  // its output is a sum over the rows, which each block adds to
  Dim drawn = 0;                         // numbers that are drawn for a row
  Dim batch_rows = 1;                    // blocks have to be whole batches of so many rows
};

// The first dims whose sizes multiply to `rows`; none where no dims do.
RowDims leading_rows(const Shape& sizes, const Dim& rows);

// The stride from one index of the dims to the next; nothing where they do not lie evenly.
std::optional<Dim> row_stride(const PlacedOperand& operand, RowDims dims);

// The step as one that works on `rows` rows; nothing where it cannot work on some of them and make the same bits.
// `operands`: of the program.
std::optional<RowStep> row_step(const Program& program, std::span<const PlacedOperand> operands,
                                const ProgramStep& step, const Dim& rows);

}  // namespace lowtide
