#pragma once

#include "ir/graph.h"

namespace lowtide {

// Makes a convolution that cuts an input image into patches (ViT's embedding) one matrix product: neither its forward
// nor its backward needs memory of a library's own.
//   %y = Conv(strides = kernel, no pads, no dilation, one group) %image, %w, %b
//     →  %p = patches of %image as rows (Reshape, Transpose, Reshape)
//        %y = Gemm(transB=true) %p, %w, %b, seen as [N, M, H, W] (Reshape, Transpose)
// Only where the image is an input of the module, or one that is cast, whose heights and widths are constants that the
// patches divide. Requires: nothing. Leaves: dead nodes (run dce).
bool patch_conv(Graph& graph);

}  // namespace lowtide
