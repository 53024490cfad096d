#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <vector>

#include "runtime/tensor.h"

namespace lowtide::bindings {

// How a place is reached from the object at its parent: not at all (the object itself is held), by its __dict__, by an
// entry of a dict, list, tuple or other mapping, by an attribute, as its class, or as what it returns, called without
// arguments.
enum class Way { kRoot, kDict, kItem, kAttribute, kType, kResult };

// What must be at a place.
enum class Expected {
  kAnything,  // some object, whose parts are places of their own
  kNothing,   // no such entry or attribute
  kSame,      // the same object
  kEqual,     // an object of the same class and value
  kSize,      // a list or tuple of the same class and size
  kKeys,      // a dict of the same class with the same keys in the same order
  kSet,       // a set of the same class and elements
  kTensor,    // a tensor of the same class, dtype, sizes and strides; which one may change, its data too
  kKey,       // an object whose key, as key_of gives it, is the same
};

// What one graph depends on of Python's objects: a tree of places, parents first, and what must be at each. Python
// builds it and puts a broken place into words (python/lowtide/guards).
class Guards {
 public:
  explicit Guards(nanobind::object key_of) : key_of_(std::move(key_of)) {}

  // `value`: what is at the place now; for kKey, its key. Returns the number of the place.
  size_t add(size_t parent, Way way, nanobind::object key, Expected expected, nanobind::object value);

  struct Broken {
    size_t place;
    bool shares = false;  // as a tensor it is right, but it is one with another place's now, or no longer
  };
  // The first place where something else is. Looks at every place, and at requires_grad of every tensor.
  std::optional<Broken> find_broken();

  // Which of a call's tensors are the ones at places: of each the first such place. The graph sees one object there.
  // While places are added; find_other_argument() then compares calls with this one.
  std::vector<std::optional<size_t>> expect_arguments(nanobind::list tensors);
  // The first of a call's tensors that is at another place than expected, or no longer at one. After find_broken()
  // has found none.
  std::optional<size_t> find_other_argument(nanobind::list tensors) const;

  // Anything, or nothing, is right at the place from now on.
  void leave_out(size_t place) { places_.at(place).is_left_out = true; }

  // A tensor as the latest find_broken() saw it.
  struct Tensor {
    nanobind::object object;
    TensorRef view;
    bool requires_grad = false;
  };
  const Tensor& tensor(size_t place) const { return tensors_[tensor_of_[place]]; }
  // Lets go of the tensors that were seen.
  void release();

 private:
  struct Place {
    size_t parent = 0;
    Way way = Way::kRoot;
    Expected expected = Expected::kAnything;
    nanobind::object key, value, type;
    Py_ssize_t size = 0;  // of a list or tuple
    bool is_left_out = false;
  };
  nanobind::object reach(const Place& place, nanobind::handle parent) const;
  bool is_right(const Place& place, nanobind::handle now, size_t index);
  bool has_right_keys(const Place& place, nanobind::handle now) const;
  std::optional<size_t> find_shared() const;
  std::optional<size_t> find_tensor(nanobind::handle object) const;

  nanobind::object key_of_;
  std::vector<Place> places_;
  std::vector<size_t> tensor_of_;  // by place, in tensors_
  std::vector<Tensor> tensors_;
  std::vector<TensorRef> metadata_;               // of tensors_
  std::vector<size_t> first_;                     // of tensors_: the first one with the same object
  std::vector<size_t> place_of_;                  // of tensors_
  std::vector<std::optional<size_t>> arguments_;  // of those expected, in tensors_; none beyond its end
  std::vector<nanobind::object> now_;
};

}  // namespace lowtide::bindings
