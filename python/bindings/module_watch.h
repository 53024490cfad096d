#pragma once

#include <nanobind/nanobind.h>

#include <vector>

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

  // A dict whose keys and values must stay the same objects in the same order: submodules, hooks. A `quiet` one is
  // empty, and who fills it either takes a handle (of a hook), or hardly can change what forward does.
  size_t add_table(nanobind::dict table, bool quiet);
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
  // Thousands of small dicts are far apart in memory. Quiet tables are looked at when `handles`, the count of handles
  // that PyTorch has given out, has changed; names that a dict lacks, when its size has. A sixteenth of both is looked
  // at in any case, so that what gets by these signs is found some calls later.
  //
  // A tensor that required a gradient is taken to do so still, at a quarter of the check's cost: autograd tells the
  // caller at once if it does not, who then asks to `forget_flags` and checks again. With `exact_flags` all are read.
  Change check(int64_t handles);
  void settle() { moved_ = false; }
  void forget_flags() { flags_known_ = false; }
  void exact_flags() { exact_flags_ = true; }

  size_t tensor_count() const { return tensors_.size(); }
  nanobind::handle tensor(size_t index) const { return tensors_[index].object; }
  const TensorRef& view(size_t index) const { return tensors_[index].view; }
  bool requires_grad(size_t index) const { return tensors_[index].requires_grad; }

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
  // Names that an object's __dict__ has not got.
  struct Absent {
    nanobind::object attributes;
    Py_ssize_t size = 0;
    std::vector<size_t> names;  // in attributes_
  };
  struct Tensor {
    nanobind::object name, object, type;
    TensorRef view;  // its sizes and strides are those of the export
    bool opaque = false;
    bool requires_grad = false;
    const void* where = nullptr;  // of refresh_view: to prefetch, never to read
  };
  struct TensorTable {
    nanobind::object dict;
    size_t first = 0, count = 0;
  };
  Picture picture_of(nanobind::handle value, int depth) const;
  bool same(const Picture& picture, nanobind::handle now) const;
  Found check_tensor(Tensor& tensor, nanobind::handle now);
  static void fetch(const Tensor& tensor);
  static bool same_tables(const Table& table);
  bool same_attribute(size_t index) const;
  Change check_quiet(bool all);
  Change check_absent(Absent& absent, bool in_any_case);

  nanobind::object plain_types_, tensor_type_;
  std::vector<Table> tables_;
  std::vector<size_t> loud_, quiet_;  // in tables_
  int64_t handles_ = -1;              // when the quiet ones were last looked at; -1: never
  size_t turn_ = 0;                   // whose sixteenth comes next
  std::vector<Attribute> attributes_, computed_;
  std::vector<size_t> present_;  // in attributes_
  std::vector<Absent> absent_;
  std::vector<Tensor> tensors_;
  std::vector<TensorTable> tensor_tables_;
  bool moved_ = false;
  bool flags_known_ = false, exact_flags_ = false;
};

}  // namespace lowtide::bindings
