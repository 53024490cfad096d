#pragma once

#include "ir/graph.h"

namespace lowtide {

// What a max pool of images keeps for backward is a byte for each output, not the eight of PyTorch's indices:
//   %y, %i = MaxPool %x; %dx = MaxPoolGrad %dy, %i
//                         →   %y, %o = MaxPool(offsets=true) %x; %dx = MaxPoolGrad(kernel_shape=.., ..) %dy, %o
// where only gradients read the indices, and every window has a place inside of the image.
// Requires: a training graph. Leaves: dead nodes (run dce).
bool number_pool_places(Graph& graph);

}  // namespace lowtide
