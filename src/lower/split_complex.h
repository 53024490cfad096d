#pragma once

#include "ir/graph.h"

namespace lowtide {

// Complex numbers become pairs of real ones, where the calls that read them allow it.
//   %z = aten::view_as_complex %x           %re = aten::select(dim=-1, index=0) %x,  %im = … index=1
//   %w = aten::mul %z, %t              →    %w_re = re·re - im·im,  %w_im = re·im + im·re
//   %y = aten::view_as_real %w              %y = aten::stack(dim=-1) %w_re, %w_im
// What knows only whole complex numbers (fft, abs, a product of matrices) stays PyTorch's call: its operands are joined
// by aten::complex, and what it makes is taken apart where it meets a pair. The gradient of a pair is that of its real
// parts, which is PyTorch's convention: dL/d(re) + i dL/d(im).
// Requires: functionalise. Leaves: a captured graph.
void split_complex(Graph& graph);

}  // namespace lowtide
