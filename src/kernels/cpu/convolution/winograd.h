// Convolutions of 3 x 3 windows at strides one with fewer multiplications: winograd_table.h.
#pragma once

#include "kernels/cpu/convolution/window_convolution.h"

namespace lowtide::cpu {

// Whether windows are such ones; window: [outputs, channels of a group, height, width].
bool are_for_winograd(const BoundAttrs& attrs, const int64_t* window);

struct Scratch {
  void* data;
  int64_t bytes;
};

// The products of such a convolution; dw goes as y does.
class WinogradConvolution {
 public:
  explicit WinogradConvolution(const WindowConvolution& sizes) : at_(sizes) {}

  // Whether it takes less time than windows by themselves; false for other windows.
  bool is_faster_for_y() const { return is_faster(at_.y_height, at_.y_width); }
  bool is_faster_for_dx() const { return is_faster(at_.x_height, at_.x_width); }

  // Floats of scratch for one thread.
  int64_t y_floats() const;
  int64_t dx_floats() const;
  int64_t dw_floats() const;

  void y(const float* x, const float* w, const float* bias, float* y, Scratch scratch) const;
  void dx(const float* dy, const float* w, float* dx, Scratch scratch) const;
  void dw(const float* dy, const float* x, float* dw, Scratch scratch) const;

 private:
  bool is_faster(int64_t height, int64_t width) const;

  const WindowConvolution& at_;
};

}  // namespace lowtide::cpu
