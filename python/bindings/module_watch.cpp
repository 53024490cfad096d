#include "module_watch.h"

#include <algorithm>

#include "base/check.h"
#include "bindings.h"
#include "call_tensors.h"
#include "dlpack.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowtide::bindings {
namespace {

constexpr int kDepth = 3;              // of containers that are compared element by element
constexpr Py_ssize_t kLargest = 4096;  // elements of one
constexpr size_t kTurns = 16;          // calls in which each quiet place is looked at once
constexpr size_t kAhead = 8;           // tensors or dicts that are fetched before they are looked at

bool same_kind(const TensorRef& a, const TensorRef& b) {
  if (a.dtype != b.dtype || a.rank != b.rank) return false;
  for (int d = 0; d < a.rank; ++d)
    if (a.sizes[d] != b.sizes[d] || (a.sizes[d] > 1 && a.strides[d] != b.strides[d])) return false;
  return true;
}

nb::object type_of(nb::handle object) { return nb::borrow(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()))); }

bool has_type(nb::handle object, const nb::object& type) {
  return reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())) == type.ptr();
}

// Borrowed; null if absent.
PyObject* entry(const nb::object& dict, const nb::object& name) {
  return PyDict_GetItemWithError(dict.ptr(), name.ptr());
}

nb::object attribute(const nb::object& owner, const nb::object& name) {
  PyObject* const found = PyObject_GetAttr(owner.ptr(), name.ptr());
  if (found == nullptr) PyErr_Clear();
  return nb::steal(found);
}

}  // namespace

size_t ModuleWatch::add_table(nb::dict table, bool quiet) {
  LT_CHECK(!quiet || PyDict_Size(table.ptr()) == 0, "a quiet table has entries");
  Table added{table, {}, {}};
  for (auto [key, value] : table) {
    added.keys.push_back(nb::borrow(key));
    added.values.push_back(nb::borrow(value));
  }
  (quiet ? quiet_ : loud_).push_back(tables_.size());
  tables_.push_back(std::move(added));
  return tables_.size() - 1;
}

size_t ModuleWatch::add_attribute(nb::dict attributes, nb::object name) {
  Picture picture = picture_of(entry(attributes, name), kDepth);
  const size_t index = attributes_.size();
  if (picture.how != How::kMissing) {
    present_.push_back(index);
  } else {
    auto at = std::find_if(absent_.begin(), absent_.end(),
                           [&](const Absent& absent) { return absent.attributes.is(attributes); });
    if (at == absent_.end()) at = absent_.insert(at, {attributes, PyDict_Size(attributes.ptr()), {}});
    at->names.push_back(index);
  }
  attributes_.push_back({std::move(attributes), std::move(name), std::move(picture)});
  return index;
}

size_t ModuleWatch::add_computed(nb::object owner, nb::object name) {
  Picture picture = picture_of(attribute(owner, name), kDepth);
  computed_.push_back({std::move(owner), std::move(name), std::move(picture)});
  return computed_.size() - 1;
}

size_t ModuleWatch::add_tensors(nb::dict table) {
  TensorTable added{table, tensors_.size(), 0};
  for (auto [name, object] : table) {
    Tensor tensor{nb::borrow(name), nb::borrow(object), type_of(object), {}, false, false};
    tensor.opaque = !try_view(object, tensor.view);
    if (!tensor.opaque && !object.is_none()) tensor.requires_grad = bindings::requires_grad(object);
    tensors_.push_back(std::move(tensor));
    ++added.count;
  }
  tensor_tables_.push_back(std::move(added));
  return tensor_tables_.size() - 1;
}

ModuleWatch::Picture ModuleWatch::picture_of(nb::handle value, int depth) const {
  Picture picture;
  if (!value.is_valid()) return picture;
  picture.how = How::kIdentity;
  picture.value = nb::borrow(value);
  picture.type = type_of(value);
  if (PyObject_IsInstance(value.ptr(), plain_types_.ptr()) == 1) {
    picture.how = How::kPlain;
  } else if (PyObject_IsInstance(value.ptr(), tensor_type_.ptr()) == 1) {
    if (try_view(value, picture.kind)) {
      picture.how = How::kTensor;
      picture.value.reset();
    }
  } else if (depth > 0 && (has_type(value, nb::borrow((PyObject*)&PyList_Type)) ||
                           has_type(value, nb::borrow((PyObject*)&PyTuple_Type)))) {
    if (PySequence_Size(value.ptr()) > kLargest) return picture;
    picture.how = How::kItems;
    for (nb::handle item : value) picture.parts.push_back(picture_of(item, depth - 1));
  } else if (depth > 0 && has_type(value, nb::borrow((PyObject*)&PyDict_Type))) {
    if (PyDict_Size(value.ptr()) > kLargest) return picture;
    picture.how = How::kDict;
    picture.value = nb::steal(PyDict_Copy(value.ptr()));
    for (auto [key, item] : nb::borrow<nb::dict>(value)) picture.parts.push_back(picture_of(item, depth - 1));
  } else if (has_type(value, nb::borrow((PyObject*)&PySet_Type))) {
    if (PySet_Size(value.ptr()) > kLargest) return picture;
    picture.how = How::kSet;
    picture.value = nb::steal(PySet_New(value.ptr()));
  }
  return picture;
}

bool ModuleWatch::same(const Picture& picture, nb::handle now) const {
  if (!now.is_valid()) return picture.how == How::kMissing;
  if (picture.how == How::kMissing) return false;
  const bool is_object = now.is(picture.value);
  if (is_object && (picture.how == How::kPlain || picture.how == How::kIdentity)) return true;
  if (picture.how == How::kIdentity) return false;
  if (picture.how == How::kTensor) {
    TensorRef view;
    return PyObject_IsInstance(now.ptr(), tensor_type_.ptr()) == 1 && try_view(now, view) &&
           same_kind(view, picture.kind);
  }
  if (!has_type(now, picture.type)) return false;
  if (picture.how == How::kItems) {
    const bool is_list = PyList_Check(now.ptr());
    const Py_ssize_t size = is_list ? PyList_Size(now.ptr()) : PyTuple_Size(now.ptr());
    if (static_cast<size_t>(size) != picture.parts.size()) return false;
    for (Py_ssize_t i = 0; i < size; ++i)
      if (!same(picture.parts[static_cast<size_t>(i)],
                is_list ? PyList_GetItem(now.ptr(), i) : PyTuple_GetItem(now.ptr(), i)))
        return false;
    return true;
  }
  if (picture.how == How::kDict) {
    if (static_cast<size_t>(PyDict_Size(now.ptr())) != picture.parts.size()) return false;
    Py_ssize_t place = 0, place_before = 0;
    PyObject *key = nullptr, *item = nullptr, *key_before = nullptr;
    for (const Picture& part : picture.parts) {
      if (!PyDict_Next(now.ptr(), &place, &key, &item)) return false;
      if (!PyDict_Next(picture.value.ptr(), &place_before, &key_before, nullptr)) return false;
      if (key != key_before && PyObject_RichCompareBool(key, key_before, Py_EQ) != 1) return PyErr_Clear(), false;
      if (!same(part, item)) return false;
    }
    return true;
  }
  const int equal = PyObject_RichCompareBool(now.ptr(), picture.value.ptr(), Py_EQ);
  if (equal < 0) PyErr_Clear();
  return equal == 1;
}

bool ModuleWatch::same_tables(const Table& table) {
  if (static_cast<size_t>(PyDict_Size(table.dict.ptr())) != table.keys.size()) return false;
  Py_ssize_t place = 0;
  PyObject *key = nullptr, *value = nullptr;
  for (size_t i = 0; i < table.keys.size(); ++i) {
    if (!PyDict_Next(table.dict.ptr(), &place, &key, &value) || value != table.values[i].ptr()) return false;
    if (key == table.keys[i].ptr()) continue;
    const int equal = PyObject_RichCompareBool(key, table.keys[i].ptr(), Py_EQ);
    if (equal != 1) return PyErr_Clear(), false;
  }
  return true;
}

ModuleWatch::Found ModuleWatch::check_tensor(Tensor& tensor, nb::handle now) {
  Found found = Found::kNothing;
  if (!now.is(tensor.object)) {
    if (now.is_none() || tensor.object.is_none()) return Found::kKind;
    found = Found::kMoved;
  }
  if (!has_type(now, tensor.type)) {
    // A tensor for a parameter is another kind of thing, and so is a lazy parameter that has got its shape.
    return Found::kKind;
  }
  if (now.is_none()) return found;
  if (tensor.opaque) {
    TensorRef view;
    return found == Found::kMoved || try_view(now, view) ? Found::kKind : Found::kNothing;
  }
  if (!refresh_view(now, tensor.view, tensor.where)) return Found::kKind;
  if (!flags_known_ || !tensor.requires_grad || found == Found::kMoved)
    tensor.requires_grad = bindings::requires_grad(now);
  if (found == Found::kMoved) tensor.object = nb::borrow(now);
  return found;
}

bool ModuleWatch::same_attribute(size_t index) const {
  const Attribute& attribute = attributes_[index];
  return same(attribute.picture, entry(attribute.owner, attribute.name));
}

ModuleWatch::Change ModuleWatch::check_quiet(bool all) {
  for (size_t i = all ? 0 : turn_; i < quiet_.size(); i += all ? 1 : kTurns)
    if (PyDict_Size(tables_[quiet_[i]].dict.ptr()) != 0) return {Found::kTable, quiet_[i]};
  return {};
}

ModuleWatch::Change ModuleWatch::check_absent(Absent& absent, bool in_any_case) {
  const Py_ssize_t size = PyDict_Size(absent.attributes.ptr());
  if (size == absent.size && !in_any_case) return {};
  for (size_t index : absent.names)
    if (!same_attribute(index)) return {Found::kAttribute, index};
  absent.size = size;
  return {};
}

// Between two steps these lines leave the caches, and fetching them one after another is most of a check's cost.
void ModuleWatch::fetch(const Tensor& tensor) {
  __builtin_prefetch(tensor.object.ptr());
  if (tensor.where == nullptr) return;
  const char* const where = static_cast<const char*>(tensor.where);
  __builtin_prefetch(where);
  __builtin_prefetch(where - 64);
  __builtin_prefetch(where + 64);
}

ModuleWatch::Change ModuleWatch::check(int64_t handles) {
  for (size_t i : loud_)
    if (!same_tables(tables_[i])) return {Found::kTable, i};
  if (const Change change = check_quiet(handles != handles_); change.found != Found::kNothing) return change;
  handles_ = handles;
  for (size_t i = 0; i < std::min(kAhead, tensors_.size()); ++i) fetch(tensors_[i]);
  for (size_t i : present_)
    if (!same_attribute(i)) return {Found::kAttribute, i};
  for (size_t i = 0; i < absent_.size(); ++i)
    if (const Change change = check_absent(absent_[i], i % kTurns == turn_); change.found != Found::kNothing)
      return change;
  turn_ = (turn_ + 1) % kTurns;
  for (size_t i = 0; i < computed_.size(); ++i)
    if (!same(computed_[i].picture, attribute(computed_[i].owner, computed_[i].name))) return {Found::kComputed, i};
  for (size_t t = 0; t < tensor_tables_.size(); ++t) {
    const TensorTable& table = tensor_tables_[t];
    if (static_cast<size_t>(PyDict_Size(table.dict.ptr())) != table.count) return {Found::kNames, t};
    Py_ssize_t place = 0;
    PyObject *name = nullptr, *object = nullptr;
    for (size_t i = table.first; i < table.first + table.count; ++i) {
      if (!PyDict_Next(table.dict.ptr(), &place, &name, &object)) return {Found::kNames, t};
      if (i + kAhead < tensors_.size()) fetch(tensors_[i + kAhead]);
      if (name != tensors_[i].name.ptr() && PyObject_RichCompareBool(name, tensors_[i].name.ptr(), Py_EQ) != 1)
        return PyErr_Clear(), Change{Found::kNames, t};
      const Found found = check_tensor(tensors_[i], object);
      if (found == Found::kKind) return {found, i};
      moved_ = moved_ || found == Found::kMoved;
    }
  }
  flags_known_ = !exact_flags_;
  return {moved_ ? Found::kMoved : Found::kNothing, 0};
}

namespace {

const char* word(ModuleWatch::Found found) {
  switch (found) {
    case ModuleWatch::Found::kTable: return "table";
    case ModuleWatch::Found::kAttribute: return "attribute";
    case ModuleWatch::Found::kComputed: return "computed";
    case ModuleWatch::Found::kKind: return "kind";
    case ModuleWatch::Found::kNames: return "names";
    case ModuleWatch::Found::kMoved: return "moved";
    case ModuleWatch::Found::kNothing: break;
  }
  return "";
}

}  // namespace

void bind_module_watch(nb::module_& module) {
  nb::class_<ModuleWatch>(module, "ModuleWatch", "A module's Python side as one export saw it; see module_watch.h.")
      .def(nb::init<nb::object, nb::object>(), "plain_types"_a, "tensor_type"_a)
      .def("add_table", &ModuleWatch::add_table, "table"_a, "quiet"_a = false)
      .def("add_attribute", &ModuleWatch::add_attribute, "attributes"_a, "name"_a)
      .def("add_computed", &ModuleWatch::add_computed, "owner"_a, "name"_a)
      .def("add_tensors", &ModuleWatch::add_tensors, "table"_a)
      .def("forget_flags", &ModuleWatch::forget_flags, "The next check reads each tensor's requires_grad.")
      .def("exact_flags", &ModuleWatch::exact_flags, "Each check reads each tensor's requires_grad.")
      .def("settle", &ModuleWatch::settle, "Tensors that moved share no other names than before.")
      .def("requires_grad",
           [](const ModuleWatch& self) {
             nb::list flags;
             for (size_t i = 0; i < self.tensor_count(); ++i) flags.append(self.requires_grad(i));
             return flags;
           })
      .def(
          "check",
          [](ModuleWatch& self, int64_t handles) -> nb::object {
            const ModuleWatch::Change change = self.check(handles);
            if (change.found == ModuleWatch::Found::kNothing) return nb::none();
            return nb::make_tuple(word(change.found), change.index);
          },
          "handles"_a, "None, or (what, index) of the first change.");
}

}  // namespace lowtide::bindings
