// Tensors across the border of the runtime.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/kernel.h"

namespace lowtide {

// Tensors of the caller's for the time of a call: a list of them, or, for callers who look at hundreds of the same
// tensors at each step, their bytes beside kinds (dtype, sizes, strides) that stay where they are.
class CallerTensors {
 public:
  CallerTensors(std::span<const TensorRef> tensors) : tensors_(tensors.data()), size_(tensors.size()) {}
  CallerTensors(const std::vector<TensorRef>& tensors) : CallerTensors(std::span(tensors)) {}
  CallerTensors(const TensorRef* tensors, size_t size) : tensors_(tensors), size_(size) {}
  CallerTensors(std::span<const TensorRef* const> kinds, std::span<void* const> data)
      : kinds_(kinds.data()), data_(data.data()), size_(kinds.size()) {}

  size_t size() const { return size_; }
  const TensorRef& kind(size_t index) const { return kinds_ == nullptr ? tensors_[index] : *kinds_[index]; }
  void* data(size_t index) const { return kinds_ == nullptr ? tensors_[index].data : data_[index]; }

 private:
  const TensorRef* tensors_ = nullptr;
  const TensorRef* const* kinds_ = nullptr;
  void* const* data_ = nullptr;
  size_t size_ = 0;
};

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
