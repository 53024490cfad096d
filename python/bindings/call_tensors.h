// The tensors of one call, seen once: among the arguments, and as the inputs of a graph.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "runtime/tensor.h"

namespace lowtide::bindings {

// Holds the tensors alive, so that the views are valid while their owners leave their sizes alone.
struct SeenTensors {
  std::vector<nanobind::object> tensors;
  std::vector<TensorRef> views;
  std::vector<bool> requires_grad;

  void add(nanobind::handle tensor, const TensorRef& view, bool wants_gradient) {
    tensors.push_back(nanobind::borrow(tensor));
    views.push_back(view);
    requires_grad.push_back(wants_gradient);
  }
};

struct CallTensors : SeenTensors {  // in the order of flattened arguments
  nanobind::object sizes;           // a tuple of tuples, made when asked for
};
struct BoundInputs : SeenTensors {};  // in the order of a graph's inputs

// What backward reads again, and the versions that it had: PyTorch counts a tensor's changes in place.
struct KeptTensors {
  std::vector<nanobind::object> tensors;
  std::vector<int64_t> versions;
};

bool requires_grad(nanobind::handle tensor);
int64_t version(nanobind::handle tensor);

}  // namespace lowtide::bindings
