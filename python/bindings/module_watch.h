#pragma once

#include <nanobind/nanobind.h>

#include <unordered_map>
#include <vector>

#include "dict_versions.h"
#include "runtime/tensor.h"

namespace lowtide::bindings {

// The Python side of a module as one export saw it, compared with what it is now. Python adds what is to be watched
// and puts a change into words (python/lowtide/ortmodule/module_watch.py).
class ModuleWatch {
 public:
  ModuleWatch(nanobind::object plain_types, nanobind::object tensor_type)
      : plain_types_(std::move(plain_types)), tensor_type_(std::move(tensor_type)) {}

  enum class Found { kNothing, kTable, kAttribute, kComputed, kKind, kNames, kMoved };
  struct Change {
    Found found = Found::kNothing;
    size_t index = 0;  // of the table, attribute or tensor
  };

  // A dict whose keys and values must stay the same objects in the same order: submodules, hooks. `by_handle`: who adds
  // to it takes one of PyTorch's handles.
  size_t add_table(nanobind::dict table, bool by_handle);
  // An entry of an object's __dict__, absent ones too: equal plain values, tensors of one kind and containers of such
  // are the same; of anything else only the object itself is.
  size_t add_attribute(nanobind::dict attributes, nanobind::object name);
  // An attribute that the owner's class answers.
  size_t add_computed(nanobind::object owner, nanobind::object name);
  // A dict of tensors (or None): parameters, buffers. Their objects may change, their kinds (dtype, sizes, strides)
  // may not. Tensors are numbered in the order in which they were added.
  size_t add_tensors(nanobind::dict table);

  // The first change. kMoved: other tensors of the same kinds, which are adopted; it is found until Python has looked
  // whether the same names share tensors, and calls settle(). Reads each tensor's view and requires_grad.
  //
  // A tensor that required a gradient is taken to do so still, at a quarter of the check's cost: autograd tells the
  // caller at once if it does not, who then asks to `forget_flags` and checks again. With `exact_flags` all are read.
  //
  // `handles`: how many handles PyTorch has given out. While it stays the same, a quarter of the empty tables of hooks
  // is looked at in each check, which would cost half as much again with all of them.
  Change check(int64_t handles);
  void settle() { moved_ = false; }
  void forget_flags() { flags_known_ = false; }
  void exact_flags() { exact_flags_ = true; }

  size_t tensor_count() const { return tensors_.size(); }
  nanobind::handle tensor(size_t index) const { return looks_[index].object; }
  // Dtype, sizes and strides: the same for the watch's whole life.
  const TensorRef* kind(size_t index) const { return &tensors_[index].kind; }
  void* data(size_t index) const { return looks_[index].data; }
  bool requires_grad(size_t index) const { return looks_[index].requires_grad; }

 private:
  enum class How { kMissing, kPlain, kIdentity, kTensor, kItems, kDict, kSet };
  struct Picture {
    How how = How::kMissing;
    nanobind::object value;  // of a container: a copy
    nanobind::object type;
    TensorRef kind;
    std::vector<Picture> parts;
  };
  struct Table {
    nanobind::object dict;
    std::vector<nanobind::object> keys, values;
  };
  struct Attribute {
    nanobind::object owner, name;  // owner: the __dict__, or the object of a computed one
    Picture picture;
  };
  using Indices = std::vector<size_t>;
  struct Tensor {
    nanobind::object name, object, type;
    TensorRef kind;
  };
  // What each check reads of a tensor of ours, close together.
  struct Look {
    PyObject* object = nullptr;
    PyObject* type = nullptr;
    void* data = nullptr;
    uint32_t dims = 0;  // in dims_
    DType dtype = DType::kF32;
    uint8_t rank = 0;
    bool opaque = false;  // None, or what no view can be had of
    bool requires_grad : 1 = false;
    bool moved : 1 = false;  // its requires_grad has not been read
  };
  struct TensorTable {
    nanobind::object dict;
    size_t first = 0, count = 0;
  };
  Picture picture_of(nanobind::handle value, int depth) const;
  bool same(const Picture& picture, nanobind::handle now) const;
  bool same_attribute(size_t index) const;
  static bool same_table(const Table& table);
  Change check_tables(int64_t handles);
  Change check_attributes();
  Change check_tensor_table(size_t index);
  bool same_tensor(size_t index);

  nanobind::object plain_types_, tensor_type_;
  std::vector<Table> tables_;
  SeenDicts seen_tables_, seen_hooks_;
  Indices loud_, quiet_;  // in tables_: those of seen_tables_ and of seen_hooks_
  int64_t handles_ = -1;  // when all of the quiet ones were seen
  size_t turn_ = 0;
  std::vector<Attribute> attributes_, computed_;
  std::vector<Indices> owned_;  // by __dict__, in attributes_: what only another value in the __dict__ changes
  SeenDicts seen_owners_;
  std::unordered_map<PyObject*, size_t> owners_;  // in owned_
  Indices mutable_;                               // in attributes_: what may change within
  std::vector<Tensor> tensors_;
  std::vector<Look> looks_;    // by tensor
  std::vector<int64_t> dims_;  // sizes, then strides of each
  std::vector<TensorTable> tensor_tables_;
  SeenDicts seen_tensor_tables_;
  bool moved_ = false;
  bool flags_known_ = false, exact_flags_ = false;
};

}  // namespace lowtide::bindings
