// Pad in the modes reflect, edge and wrap, and its gradient. Row by row: most of a padded row is a run of a row of x.
#pragma once

#include "kernels/kernel.h"

namespace lowtide::cpu {

// x within y, or dx within dy, by dims in the order of memory: row-major, or images with their channels last. Negative
// pads crop.
struct FoldedPad {
  FoldedPad(const BoundCall& call, const TensorRef& plain, const TensorRef& padded, bool channels_last);
  explicit FoldedPad(const BoundCall& call) : FoldedPad(call, call.inputs[0], call.outputs[0], false) {}

  // Where a padded coordinate comes from.
  int64_t source(int dim, int64_t coordinate) const;
  int64_t source_row(int64_t padded_row) const;
  // body(coordinate) for the padded coordinates that come from `at`.
  template <class Body>
  void for_each_padded(int dim, int64_t at, Body body) const;
  // body(row) for the padded rows that come from a row; `row`: that of the dims before `dim`, 0 at first.
  template <class Body>
  void for_each_padded_row(const int64_t* at, int dim, int64_t row, const Body& body) const;

  enum class Mode : uint8_t { kReflect, kEdge, kWrap } mode;
  int last;  // dim
  int64_t before[kMaxRank], plain[kMaxRank], padded[kMaxRank];
  int64_t plain_rows = 1, padded_rows = 1;
  int64_t begin, end;  // of a padded row: what lies in the row of x as it is
};
const char* supports_folded_pad(const KernelQuery& query);
KernelStatus folded_pad(const KernelCall& call, const FoldedPad& pad);

struct FoldedPadGrad : FoldedPad {
  explicit FoldedPadGrad(const BoundCall& call) : FoldedPad(call, call.outputs[0], call.inputs[0], false) {}
};
int64_t folded_pad_grad_scratch(const BoundCall& call);
KernelStatus folded_pad_grad(const KernelCall& call, const FoldedPadGrad& pad);

struct ImagesPad : FoldedPad {
  explicit ImagesPad(const BoundCall& call) : FoldedPad(call, call.inputs[0], call.outputs[0], true) {}
};
const char* supports_images_pad(const KernelQuery& query);
KernelStatus images_pad(const KernelCall& call, const ImagesPad& pad);

struct ImagesPadGrad : FoldedPad {
  explicit ImagesPadGrad(const BoundCall& call) : FoldedPad(call, call.outputs[0], call.inputs[0], true) {}
};
const char* supports_images_pad_grad(const KernelQuery& query);
int64_t images_pad_grad_scratch(const BoundCall& call);
KernelStatus images_pad_grad(const KernelCall& call, const ImagesPadGrad& pad);

}  // namespace lowtide::cpu
