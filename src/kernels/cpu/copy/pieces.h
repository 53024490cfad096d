// What is put together of copies of boxes of one operand: Pad with a constant, Roll, Flip, Tile, RepeatInterleave,
// Trilu.
#pragma once

#include "kernels/cpu/copy/copy.h"

namespace lowtide::cpu {

// A copy of a box of x to a box of y, at bytes from their first elements.
struct Piece {
  TensorCopy copy;
  int64_t from = 0, to = 0;
  void run(const void* x, void* y) const { copy.run(static_cast<const char*>(x) + from, static_cast<char*>(y) + to); }
};

struct ConstantPad {
  explicit ConstantPad(const BoundCall& call);
  TensorCopy everywhere;  // of the value, by strides of 0
  Piece inside;           // of x within y; negative pads crop
  double value;
};
const char* supports_pad(const KernelQuery& query);
KernelStatus pad(const KernelCall& call, const ConstantPad& padding);

// Along each rolled axis, what comes first in x comes last in y.
constexpr size_t kMostRolled = 3;
struct Rolled {
  explicit Rolled(const BoundCall& call);
  Piece pieces[1 << kMostRolled];
  size_t count = 0;
};
const char* supports_roll(const KernelQuery& query);
KernelStatus roll(const KernelCall& call, const Rolled& rolled);

struct Mirrored {
  explicit Mirrored(const BoundCall& call);
  Piece copy;  // of x from its end on, by negative strides
};
KernelStatus flip(const KernelCall& call, const Mirrored& mirrored);

// Matrices side by side, of which a triangle is kept.
struct KeptTriangle {
  explicit KeptTriangle(const BoundCall& call);
  int64_t lines, rows, cols, bytes;  // of an element
  int64_t k;
  bool upper;
};
KernelStatus trilu(const KernelCall& call, const KeptTriangle& kept);

struct Tiled {
  explicit Tiled(const BoundCall& call);
  TensorCopy copy;  // of x, repeated by strides of 0
};
const char* supports_tile(const KernelQuery& query);
KernelStatus tile(const KernelCall& call, const Tiled& tiled);

struct Interleaved {
  explicit Interleaved(const BoundCall& call);
  TensorCopy copy;  // of x, each of the axis repeated by a stride of 0
};
const char* supports_repeat_interleave(const KernelQuery& query);
KernelStatus repeat_interleave(const KernelCall& call, const Interleaved& repeated);

}  // namespace lowtide::cpu
