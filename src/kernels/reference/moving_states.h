// States of kernels that move elements, and of those on images. See states.h.
#pragma once

#include "kernels/reference/states.h"

namespace lowtide::reference {

// ---- moved elements

// By axis; `mode` by its first letter.
struct Padding {
  explicit Padding(const BoundCall& call);
  int64_t before[kMaxRank];
  char mode;
  double fill;
};
struct PaddingGrad : Padding {
  explicit PaddingGrad(const BoundCall& call) : Padding(call), dx(positions(call, call.outputs[0])) {}
  Grid<1> dx;
};

struct Repeats {
  explicit Repeats(const BoundCall& call) : axis(call.attrs->i("axis")), repeats(call.attrs->i("repeats")) {}
  int64_t axis, repeats;
};

struct Flipped {
  explicit Flipped(const BoundCall& call);
  bool axes[kMaxRank] = {};
};

struct Shifts {
  explicit Shifts(const BoundCall& call);
  int64_t by_axis[kMaxRank] = {};
};

struct Triangle {
  explicit Triangle(const BoundCall& call)
      : upper(call.attrs->b("upper")),
        k(call.attrs->i("k")),
        positions(row_major_order<1>(call, call.outputs[0], {&call.inputs[0]})) {}
  bool upper;
  int64_t k;
  Grid<2> positions;  // x, y
};

// An input and where it goes in the output, by elements.
struct Part {
  Part(const BoundCall& call, size_t operand);
  Runs<2> runs;  // nothing for the output itself
  int64_t offset = 0;
};

struct SlicePlace {
  explicit SlicePlace(const BoundCall& call);
  Runs<2> base, update;
  int64_t offset;  // of the update's first element
};

// data.shape[:axis] + indices.shape + data.shape[axis+1:] as three grids.
struct Gathering {
  Gathering(const BoundCall& call, const TensorRef& data, const TensorRef& gathered);
  explicit Gathering(const BoundCall& call) : Gathering(call, call.inputs[0], call.outputs[0]) {}
  int64_t size, stride;   // of data's axis
  Grid<2> before, after;  // data, gathered
  Grid<2> middle;         // indices, gathered
};

struct GatheringGrad : Gathering {
  explicit GatheringGrad(const BoundCall& call);
  Runs<2> onto;  // what it is added to, if that is given
  Grid<1> dx;
  int64_t padding;  // the row that gets no gradient; -1: none
};

// Positions of the indices with the offsets of two tensors that agree with them in all dims but (perhaps) `axis`, of
// which `along` is not moved. A 0-d tensor counts as one of shape [1].
struct ElementPicks {
  ElementPicks(const BoundCall& call, const TensorRef& along, const TensorRef& other);
  explicit ElementPicks(const BoundCall& call) : ElementPicks(call, call.inputs[0], call.outputs[0]) {}
  int64_t size, stride;  // of the axis of `along`
  Grid<3> grid;          // indices, along, other
};

// How an update joins what is there: none, add, mul, max or min.
enum class Joining : uint8_t { kReplace, kAdd, kMultiply, kMaximum, kMinimum };
Joining joining_of(const BoundCall& call);

struct AxisScattering : ElementPicks {
  explicit AxisScattering(const BoundCall& call)
      : ElementPicks(call, call.outputs[0], call.inputs[2]),
        copy(pairs(call, call.inputs[0], call.outputs[0])),
        joining(joining_of(call)),
        anew(call.attrs->get_or<bool>("anew", false)) {}
  Runs<2> copy;
  Joining joining;
  bool anew;
};

// indices [.., K] pick slices data[i1, .., iK] of shape data.shape[K:].
struct Slices {
  Slices(const TensorRef& data, const TensorRef& indices, const TensorRef& slices);
  explicit Slices(const BoundCall& call) : Slices(call.inputs[0], call.inputs[1], call.outputs[0]) {}
  Grid<2> tuples;  // indices, slices
  Grid<2> slice;   // data, slices
  int64_t depth, index_stride;
};
struct SliceScattering : Slices {
  explicit SliceScattering(const BoundCall& call)
      : Slices(call.outputs[0], call.inputs[1], call.inputs[2]),
        copy(pairs(call, call.inputs[0], call.outputs[0])),
        joining(joining_of(call)) {}
  Runs<2> copy;
  Joining joining;
};

// ---- what a condition chooses

struct Places {
  explicit Places(const BoundCall& call) : grid(positions(call, call.inputs[0])) {}
  Grid<1> grid;
};

// Rows of a tensor, and those of them that a condition chooses, one after another in another tensor.
struct MaskedRows {
  MaskedRows(const BoundCall& call, const TensorRef& all, const TensorRef& chosen);
  int64_t rows, chosen_rows;
  int64_t all_stride, chosen_stride, condition_stride;
  Grid<2> row;  // all, chosen
};
struct Compressed : MaskedRows {
  explicit Compressed(const BoundCall& call) : MaskedRows(call, call.inputs[0], call.outputs[0]) {}
};
struct Scattered : MaskedRows {
  explicit Scattered(const BoundCall& call)
      : MaskedRows(call, call.outputs[0], call.inputs[2]), copy(pairs(call, call.inputs[0], call.outputs[0])) {}
  Runs<2> copy;
};

struct BitFields {
  BitFields(const BoundCall& call, const TensorRef& wide)
      : bits(call.attrs->i("bits")),
        low(static_cast<uint64_t>(call.attrs->i("low"))),
        mask((uint64_t{1} << bits) - 1),
        values(positions(call, wide)) {}
  int64_t bits;
  uint64_t low, mask;
  Grid<1> values;
};
struct PackedFields : BitFields {
  explicit PackedFields(const BoundCall& call) : BitFields(call, call.inputs[0]) {}
};
struct UnpackedFields : BitFields {
  explicit UnpackedFields(const BoundCall& call) : BitFields(call, call.outputs[0]) {}
};

// ---- images

constexpr int kSpatial = 3;

// Sizes and strides of [N, C, d1..dk] with missing spatial dims of size 1 in front.
struct Image {
  explicit Image(const TensorRef& tensor);
  int64_t offset(int64_t n, int64_t c, const int64_t* at) const {
    return n * outer_stride + c * channel_stride + at[0] * strides[0] + at[1] * strides[1] + at[2] * strides[2];
  }
  int64_t outer, channels, outer_stride, channel_stride;
  int64_t sizes[kSpatial], strides[kSpatial];
};

// A convolution's, over three spatial dims: missing ones lie in front.
struct ConvWindow {
  ConvWindow(const BoundCall& call, const TensorRef& x, const TensorRef& w, const TensorRef& y);
  explicit ConvWindow(const BoundCall& call) : ConvWindow(call, call.inputs[0], call.inputs[1], call.outputs[0]) {}
  // Input position that tap k of output position o reads, perhaps outside.
  int64_t source(int dim, int64_t o, int64_t k) const { return o * strides[dim] - pads[dim] + k * dilations[dim]; }

  Image x, w, y;
  int64_t strides[kSpatial] = {1, 1, 1}, pads[kSpatial] = {}, dilations[kSpatial] = {1, 1, 1};
  int64_t group;
};
// Its y is dy.
struct ConvGradWindow : ConvWindow {
  explicit ConvGradWindow(const BoundCall& call)
      : ConvWindow(call, call.inputs[1], call.inputs[2], call.inputs[0]),
        dx(output_or_absent(call, 0)),
        dw(output_or_absent(call, 1)) {}
  Image dx, dw;
};

// A pool's, over the spatial dims that there are.
struct PoolWindow {
  explicit PoolWindow(const BoundCall& call);
  int64_t kernel[kMaxRank], strides[kMaxRank], pads[kMaxRank], end_pads[kMaxRank], dilations[kMaxRank];
  int64_t taps = 1;
  bool include_pad;  // of an average
  bool offsets;      // of a maximum: indices are places in windows
};

// Planes of the last two dims of a large and a small tensor, in windows as AdaptiveAveragePool has them.
struct AdaptiveMeans {
  AdaptiveMeans(const TensorRef& large_tensor, const TensorRef& small_tensor);
  explicit AdaptiveMeans(const BoundCall& call) : AdaptiveMeans(call.inputs[0], call.outputs[0]) {}
  // body(offset in the large tensor, in the small one) for each plane.
  template <class Body>
  void for_planes(Body body) const;
  struct Plane {
    int64_t sizes[2], strides[2];
  };
  Grid<2> planes;
  Plane large, small;
};
struct AdaptiveMeansGrad : AdaptiveMeans {
  explicit AdaptiveMeansGrad(const BoundCall& call) : AdaptiveMeans(call.outputs[0], call.inputs[0]) {}
};

// Of an image, over its last two dims: what windows begin with, and their steps.
struct ImageWindows {
  explicit ImageWindows(const BoundCall& call);
  // The places of neighbouring windows for one element of the kernel.
  struct Row {
    int64_t in_image;  // offset of the image's row, if it is inside
    bool inside;
    int64_t left;        // column of the image for the first window
    int64_t in_windows;  // offset of the first
  };
  // body(row) for each; those of a plane in one thread.
  template <class Body>
  void for_rows(const TensorRef& image, const TensorRef& windows, Body body) const;
  int64_t strides[2], pads[2], dilations[2];
};

struct Resizing {
  Resizing(const BoundCall& call, const TensorRef& small, const TensorRef& large);
  explicit Resizing(const BoundCall& call) : Resizing(call, call.inputs[0], call.outputs[0]) {}
  bool nearest, align_corners;
  Grid<2> images;  // small, large
};
struct ResizingGrad : Resizing {
  explicit ResizingGrad(const BoundCall& call)
      : Resizing(call, call.outputs[0], call.inputs[0]), dx(positions(call, call.outputs[0])) {}
  Grid<1> dx;
};

}  // namespace lowtide::reference
