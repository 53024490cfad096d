// Tensors across the border of the runtime.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/kernel.h"

namespace lowtide {

// A tensor whose bytes somebody of ours keeps alive: an output (a block of its own), or a gradient (the arena).
// Dropping `owner` needs no lock and touches no Python.
struct OwnedTensor {
  TensorRef ref;
  std::shared_ptr<void> owner;
  // >= 0: not ours at all, but a view of this input of the call, `offset` elements after its first, where the input has
  // the planned `input_strides`: rebuild it on the caller's tensor.
  int alias_input = -1;
  int64_t offset = 0;
  std::vector<int64_t> input_strides;
};

// The gradients of one backward: metadata (whose `data` says nothing) beside the places of their bytes. What keeps the
// bytes alive needs no lock to be dropped and touches no Python.
class Gradients {
 public:
  Gradients(std::shared_ptr<const void> holder, std::vector<std::shared_ptr<void>> owners, size_t size)
      : holder_(std::move(holder)), owners_(std::move(owners)) {
    entries_.reserve(size);
  }
  // `owner`: which of the owners has its bytes.
  void add(const TensorRef& metadata, void* data, size_t owner) { entries_.push_back({&metadata, data, owner, {}}); }
  // Gives each its own owner; what has expired later tells which of them nobody holds any more.
  std::vector<std::weak_ptr<void>> watch() {
    std::vector<std::weak_ptr<void>> watched;
    for (Entry& entry : entries_) {
      entry.own = std::make_shared<std::shared_ptr<void>>(owners_[entry.owner]);
      watched.push_back(entry.own);
    }
    return watched;
  }

  size_t size() const { return entries_.size(); }
  const TensorRef& metadata(size_t index) const { return *entries_[index].metadata; }
  void* data(size_t index) const { return entries_[index].data; }
  const std::shared_ptr<void>& owner(size_t index) const {
    const Entry& entry = entries_[index];
    return entry.own ? entry.own : owners_[entry.owner];
  }
  std::vector<OwnedTensor> tensors() const {
    std::vector<OwnedTensor> tensors(size());
    for (size_t i = 0; i < size(); ++i) {
      tensors[i].ref = metadata(i);
      tensors[i].ref.data = data(i);
      tensors[i].owner = owner(i);
    }
    return tensors;
  }

 private:
  struct Entry {
    const TensorRef* metadata;
    void* data;
    size_t owner;
    std::shared_ptr<void> own;
  };
  std::shared_ptr<const void> holder_;  // of the metadata
  std::vector<Entry> entries_;
  std::vector<std::shared_ptr<void>> owners_;
};

// A handle of the call handler's (Python: the autograd graph of one fallback call). Opaque to us.
using CallContext = std::shared_ptr<void>;

}  // namespace lowtide
