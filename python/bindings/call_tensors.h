// The tensors of one call, seen once: among the arguments, and as the inputs of a graph.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <vector>

#include "runtime/tensor.h"

namespace lowtide::bindings {

// In the order of flattened arguments. Holds the tensors alive, so that the views are valid while their owners leave
// their sizes alone.
struct CallTensors {
  std::vector<nanobind::object> tensors;
  std::vector<TensorRef> views;
  std::vector<bool> requires_grad;
  nanobind::object sizes;  // a tuple of tuples, made when asked for

  void add(nanobind::handle tensor, const TensorRef& view, bool wants_gradient) {
    tensors.push_back(nanobind::borrow(tensor));
    views.push_back(view);
    requires_grad.push_back(wants_gradient);
  }
};

// Tensors in the order of a graph's inputs, or some of them. Most have the kinds (dtype, sizes, strides) that the
// module's watch knows of them, which lie where they are as long as the watch does; the others have kinds of our own.
struct PlacedTensors {
  std::vector<nanobind::object> tensors;
  std::vector<const TensorRef*> kinds;
  std::vector<void*> data;
  std::vector<int64_t> versions;  // of KeptTensors
  std::vector<std::shared_ptr<const TensorRef>> own_kinds;
  nanobind::object watch;

  void add(nanobind::handle tensor, const TensorRef* kind, void* bytes) {
    tensors.push_back(nanobind::borrow(tensor));
    kinds.push_back(kind);
    data.push_back(bytes);
  }
  const TensorRef* own(const TensorRef& kind) {
    return own_kinds.emplace_back(std::make_shared<const TensorRef>(kind)).get();
  }
  void clear();
};

// Emptied ones of calls that are over, for the next calls: a step has freed hundreds of small pieces of memory, and the
// first larger piece that is asked for after it makes malloc sort them all.
class SparePlaces {
 public:
  PlacedTensors take();
  void give(PlacedTensors&& used);

 private:
  static constexpr size_t kMost = 8;
  std::vector<PlacedTensors> spare_;
};

// Moves; on its end its places are spare again. Needs Python's lock.
class LentTensors : public PlacedTensors {
 public:
  explicit LentTensors(std::shared_ptr<SparePlaces> home) : PlacedTensors(home->take()), home_(std::move(home)) {}
  LentTensors(LentTensors&&) = default;
  ~LentTensors() {
    if (home_) home_->give(std::move(*this));
  }
  const std::shared_ptr<SparePlaces>& home() const { return home_; }

 private:
  std::shared_ptr<SparePlaces> home_;
};

struct BoundInputs : LentTensors {
  using LentTensors::LentTensors;
  std::vector<bool> requires_grad;
};

// What backward reads again, and the versions that it had: PyTorch counts a tensor's changes in place.
struct KeptTensors : LentTensors {
  using LentTensors::LentTensors;
};

// Some of a graph's inputs.
struct Indices {
  std::vector<size_t> values;
};

bool requires_grad(nanobind::handle tensor);
int64_t version(nanobind::handle tensor);

}  // namespace lowtide::bindings
