// The window of a pool over kDims spatial dims; those that the op lacks lie in front and have one place.
#pragma once

#include <algorithm>

#include "kernels/kernel.h"

namespace lowtide::cpu {

// Taps of one output: [begin, end).
struct Span {
  int64_t begin, end;
};

template <int kDims>
struct Window {
  int64_t kernel[kDims], strides[kDims], pads[kDims] = {}, end_pads[kDims] = {}, dilations[kDims];
  explicit Window(const BoundCall& call) {
    const BoundAttrs& attrs = *call.attrs;
    const int given = static_cast<int>(attrs.ints("kernel_shape").size()), missing = kDims - given;
    std::fill_n(kernel, kDims, 1);
    std::fill_n(strides, kDims, 1);
    std::fill_n(dilations, kDims, 1);
    for (int i = 0; i < given; ++i) {
      kernel[missing + i] = attrs.ints("kernel_shape")[i];
      strides[missing + i] = attrs.ints("strides")[i];
      pads[missing + i] = attrs.ints("pads")[i];
      end_pads[missing + i] = attrs.ints("pads")[given + i];
      if (attrs.has("dilations")) dilations[missing + i] = attrs.ints("dilations")[i];
    }
  }
  // Taps k of output o that read inside [0, size).
  Span taps(int dim, int64_t o, int64_t size) const {
    const int64_t start = o * strides[dim] - pads[dim], d = dilations[dim];
    const int64_t begin = start < 0 ? (-start + d - 1) / d : 0;
    const int64_t end = start < size ? std::min(kernel[dim], (size - start + d - 1) / d) : 0;
    return {begin, std::max(begin, end)};
  }
  int64_t source(int dim, int64_t o, int64_t k) const { return o * strides[dim] - pads[dim] + k * dilations[dim]; }
};

// Of an average pool.
template <int kDims>
struct AverageWindow : Window<kDims> {
  explicit AverageWindow(const BoundCall& call)
      : Window<kDims>(call), include_pad(call.attrs->b("count_include_pad")) {}
  // How many places of one dim output o counts: what it divides by is the product over the dims.
  int64_t counted(int dim, int64_t o, int64_t size) const {
    const int64_t begin = o * this->strides[dim] - this->pads[dim];
    const int64_t end = std::min(begin + this->kernel[dim], size + this->end_pads[dim]);
    return include_pad ? end - begin : std::min(end, size) - std::max<int64_t>(begin, 0);
  }
  bool include_pad;
};

}  // namespace lowtide::cpu
