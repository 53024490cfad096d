// GatherElements and ScatterElements (torch.gather, torch.scatter): each line along the axis picks within itself, so
// that lines are shared among threads.
#pragma once

#include <atomic>
#include <cstring>

#include "kernels/cpu/block_rows.h"
#include "kernels/cpu/copy/copy.h"

namespace lowtide::cpu {

// The lines along `axis` of the indices, and of what they are picked from (`along`) and of the other operand.
struct PickedLines {
  PickedLines(const BoundCall& call, const TensorRef& along, const TensorRef& other);

  struct Line {
    int64_t along, indices, other;  // offsets of its first number, or steps from a line to the next
  };
  Line line(int64_t number) const;

  // Calls one(offset of the place that an index names, offset of its update or of what it picks) for lines [first,
  // first + count), each from its beginning to its end; neighbours that lie side by side advance together. Where n of
  // them have one index, run(place, other, n) is for all of them. Whether all indices were inside; the others are
  // passed over.
  template <class One, class Run>
  bool for_each(const int64_t* indices, int64_t first, int64_t count, One one, Run run) const;
  // The same for all lines, on threads; `cost` is roughly the nanoseconds of an index.
  template <class One, class Run>
  bool for_all(const int64_t* indices, double cost, One one, Run run) const;

  int64_t lines = 1, picks, size;  // of the axis: of the indices, of what they are picked from
  int64_t along_step, indices_step, other_step;

 private:
  struct Dim {
    int64_t size, along, indices, other;
  };
  Dim dims_[kMaxRank];
  int rank_ = 0;
};

inline bool are_equal(const int64_t* indices, int64_t n) {
  return indices[0] == indices[n - 1] && std::memcmp(indices, indices + 1, (n - 1) * sizeof(int64_t)) == 0;
}

template <class One, class Run>
bool PickedLines::for_each(const int64_t* indices, int64_t first, int64_t count, One one, Run run) const {
  const Dim last = rank_ > 0 ? dims_[rank_ - 1] : Dim{1, 0, 0, 0};
  const bool together = last.indices < indices_step;
  const bool side_by_side = last.along == 1 && last.other == 1;
  bool inside = true;
  for (int64_t number = first; number < first + count;) {
    // Lines side by side: those that differ in the last dim alone.
    const int64_t n = together ? std::min(first + count - number, last.size - number % last.size) : 1;
    const auto [along, at, other] = line(number);
    for (int64_t i = 0; i < picks; ++i) {
      const int64_t *from = indices + at + i * indices_step, to = other + i * other_step;
      // What was expanded over the last dim is often row-major by now.
      const bool shared = side_by_side && (last.indices == 0 || (last.indices == 1 && are_equal(from, n)));
      for (int64_t j = 0; j < n; ++j) {
        int64_t index = from[j * last.indices];
        index += index < 0 ? size : 0;
        if (index < 0 || index >= size) {
          inside = false;
        } else if (shared) {
          run(along + index * along_step, to, n);
        } else {
          one(along + j * last.along + index * along_step, to + j * last.other);
        }
        if (shared) break;
      }
    }
    number += n;
  }
  return inside;
}

template <class One, class Run>
bool PickedLines::for_all(const int64_t* indices, double cost, One one, Run run) const {
  std::atomic<bool> inside = true;
  for_row_chunks(lines, picks, cost, [&](int64_t first, int64_t count) {
    if (!for_each(indices, first, count, one, run)) inside = false;
  });
  return inside;
}

struct GatheredElements : PickedLines {
  explicit GatheredElements(const BoundCall& call) : PickedLines(call, call.inputs[0], call.outputs[0]) {}
};
const char* supports_gather_elements(const KernelQuery& query);
KernelStatus gather_elements(const KernelCall& call, const GatheredElements& lines);

enum class Joining : uint8_t { kReplace, kAdd, kMax, kMin };

// Sums of halves are f32, rounded once.
struct ScatteredElements : PickedLines {
  explicit ScatteredElements(const BoundCall& call);
  TensorCopy base;
  Joining joining;
  bool anew;
};
const char* supports_scatter_elements(const KernelQuery& query);
int64_t scatter_elements_scratch(const BoundCall& call);
KernelStatus scatter_elements(const KernelCall& call, const ScatteredElements& lines);

}  // namespace lowtide::cpu
