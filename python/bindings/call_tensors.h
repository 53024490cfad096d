// The tensors of one call, seen once: among the arguments, and as the inputs of a graph.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "runtime/tensor.h"

namespace lowtide::bindings {

// Holds the tensors alive, so that the views are valid while their owners leave their sizes alone.
struct CallTensors {
  std::vector<nanobind::object> tensors;
  std::vector<TensorRef> views;
  std::vector<bool> requires_grad;

  void add(nanobind::handle tensor, const TensorRef& view, bool wants_gradient) {
    tensors.push_back(nanobind::borrow(tensor));
    views.push_back(view);
    requires_grad.push_back(wants_gradient);
  }
};

// In the order of flattened arguments.
struct ArgumentTensors : CallTensors {
  std::vector<nanobind::object> strings;  // of any value
  nanobind::object sizes;                 // a tuple of tuples, made when asked for
};

// In the order of a graph's inputs.
struct BoundInputs : CallTensors {};

}  // namespace lowtide::bindings
