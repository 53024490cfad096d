// GatherElements and ScatterElements (torch.gather, torch.scatter): each line along the axis picks within itself, so
// that lines are shared among threads.
#pragma once

#include "kernels/cpu/copy/copy.h"

namespace lowtide::cpu {

// The lines along `axis` of the indices, and of what they are picked from (`along`) and of the other operand.
struct PickedLines {
  PickedLines(const BoundCall& call, const TensorRef& along, const TensorRef& other);

  struct Line {
    int64_t along, indices, other;  // offsets of its first number, or steps from a line to the next
  };
  Line line(int64_t number) const;

  // body(first line, n) for lines [first, first + count) by groups of up to `most`: each line of a group is `next()`
  // from the one before, and they lie side by side where that is nearer than the axis; else a group is one line.
  template <class Body>
  void for_groups(int64_t first, int64_t count, int64_t most, Body body) const;
  Line next() const {
    return rank_ > 0 ? Line{dims_[rank_ - 1].along, dims_[rank_ - 1].indices, dims_[rank_ - 1].other} : Line{};
  }

  // body(index, offset of its line, offset of its update or of what it picks) for those lines, each from its beginning
  // to its end.
  template <class Body>
  void for_each(const int64_t* indices, int64_t first, int64_t count, Body body) const;

  int64_t lines = 1, picks, size;  // of the axis: of the indices, of what they are picked from
  int64_t along_step, indices_step, other_step;

 private:
  struct Dim {
    int64_t size, along, indices, other;
  };
  Dim dims_[kMaxRank];
  int rank_ = 0;
};

template <class Body>
void PickedLines::for_groups(int64_t first, int64_t count, int64_t most, Body body) const {
  const int64_t width = rank_ > 0 ? dims_[rank_ - 1].size : 1;
  const bool together = next().indices < indices_step;
  for (int64_t number = first; number < first + count;) {
    const int64_t n = together ? std::min({most, first + count - number, width - number % width}) : 1;
    body(line(number), n);
    number += n;
  }
}

template <class Body>
void PickedLines::for_each(const int64_t* indices, int64_t first, int64_t count, Body body) const {
  const Line step = next();
  for_groups(first, count, count, [&](const Line& at, int64_t n) {
    for (int64_t i = 0; i < picks; ++i) {
      const int64_t *from = indices + at.indices + i * indices_step, to = at.other + i * other_step;
      for (int64_t j = 0; j < n; ++j) body(from[j * step.indices], at.along + j * step.along, to + j * step.other);
    }
  });
}

struct GatheredElements : PickedLines {
  explicit GatheredElements(const BoundCall& call) : PickedLines(call, call.inputs[0], call.outputs[0]) {}
};
const char* supports_gather_elements(const KernelQuery& query);
KernelStatus gather_elements(const KernelCall& call, const GatheredElements& lines);

// Sums of halves are f32, rounded once.
struct ScatteredElements : PickedLines {
  explicit ScatteredElements(const BoundCall& call);
  TensorCopy base;
  bool adds;
};
const char* supports_scatter_elements(const KernelQuery& query);
int64_t scatter_elements_scratch(const BoundCall& call);
KernelStatus scatter_elements(const KernelCall& call, const ScatteredElements& lines);

}  // namespace lowtide::cpu
