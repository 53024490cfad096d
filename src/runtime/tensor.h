// Tensors across the border of the runtime.
#pragma once

#include <memory>

#include "kernels/kernel.h"

namespace lowtide {

// A tensor whose bytes somebody of ours keeps alive: an output (a block of its own), or a gradient (the arena).
// Dropping `owner` needs no lock and touches no Python.
struct OwnedTensor {
  TensorRef ref;
  std::shared_ptr<void> owner;
  // >= 0: not ours at all, but a view of this input of the call, `offset` elements after its first: rebuild it on the
  // caller's tensor.
  int alias_input = -1;
  int64_t offset = 0;
};

// A handle of the call handler's (Python: the autograd graph of one fallback call). Opaque to us.
using CallContext = std::shared_ptr<void>;

}  // namespace lowtide
