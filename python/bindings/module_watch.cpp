#include "module_watch.h"

#include <algorithm>

#include "base/check.h"
#include "bindings.h"
#include "call_tensors.h"
#include "dlpack.h"
#include "torch_fields.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowtide::bindings {
namespace {

constexpr int kDepth = 3;              // of containers that are compared element by element
constexpr Py_ssize_t kLargest = 4096;  // elements of one
constexpr size_t kTurns = 4;           // checks in which each quiet table is looked at once

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

size_t ModuleWatch::add_table(nb::dict table, bool by_handle) {
  Table added{table, {}, {}};
  for (auto [key, value] : table) {
    added.keys.push_back(nb::borrow(key));
    added.values.push_back(nb::borrow(value));
  }
  const bool is_quiet = by_handle && added.keys.empty();
  (is_quiet ? quiet_ : loud_).push_back(tables_.size());
  (is_quiet ? seen_hooks_ : seen_tables_).add(table);
  tables_.push_back(std::move(added));
  return tables_.size() - 1;
}

size_t ModuleWatch::add_attribute(nb::dict attributes, nb::object name) {
  Picture picture = picture_of(entry(attributes, name), kDepth);
  const size_t index = attributes_.size();
  if (picture.how == How::kMissing || picture.how == How::kPlain || picture.how == How::kIdentity) {
    const auto [at, is_new] = owners_.try_emplace(attributes.ptr(), owned_.size());
    if (is_new) {
      owned_.emplace_back();
      seen_owners_.add(attributes);
    }
    owned_[at->second].push_back(index);
  } else {
    mutable_.push_back(index);
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
    Tensor tensor;
    tensor.name = nb::borrow(name);
    tensor.object = nb::borrow(object);
    tensor.type = type_of(object);
    Look look;
    look.object = object.ptr();
    look.type = tensor.type.ptr();
    look.opaque = !try_view(object, tensor.kind);
    look.data = tensor.kind.data;
    look.dims = static_cast<uint32_t>(dims_.size());
    look.dtype = tensor.kind.dtype;
    look.rank = static_cast<uint8_t>(tensor.kind.rank);
    dims_.insert(dims_.end(), tensor.kind.sizes, tensor.kind.sizes + tensor.kind.rank);
    dims_.insert(dims_.end(), tensor.kind.strides, tensor.kind.strides + tensor.kind.rank);
    if (!look.opaque && !object.is_none()) look.requires_grad = bindings::requires_grad(object);
    looks_.push_back(look);
    tensors_.push_back(std::move(tensor));
    ++added.count;
  }
  tensor_tables_.push_back(std::move(added));
  seen_tensor_tables_.add(table);
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

bool ModuleWatch::same_table(const Table& table) {
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

bool ModuleWatch::same_attribute(size_t index) const {
  const Attribute& attribute = attributes_[index];
  return same(attribute.picture, entry(attribute.owner, attribute.name));
}

ModuleWatch::Change ModuleWatch::check_tables(int64_t handles) {
  const auto is_same = [&](const Indices& indices) {
    return [&](size_t i) { return same_table(tables_[indices[i]]); };
  };
  if (const size_t wrong = seen_tables_.first_wrong(is_same(loud_)); wrong < loud_.size())
    return {Found::kTable, loud_[wrong]};
  const bool all = handles != handles_;
  const size_t begin = all ? 0 : turn_ * quiet_.size() / kTurns;
  const size_t end = all ? quiet_.size() : (turn_ + 1) * quiet_.size() / kTurns;
  const size_t wrong = seen_hooks_.first_wrong(begin, end, is_same(quiet_));
  if (wrong < end) return {Found::kTable, quiet_[wrong]};
  handles_ = handles;
  turn_ = (turn_ + 1) % kTurns;
  return {};
}

ModuleWatch::Change ModuleWatch::check_attributes() {
  const auto changed = [&](const Indices& indices) {
    return std::find_if_not(indices.begin(), indices.end(), [&](size_t index) { return same_attribute(index); });
  };
  const size_t wrong = seen_owners_.first_wrong([&](size_t i) { return changed(owned_[i]) == owned_[i].end(); });
  if (wrong != owned_.size()) return {Found::kAttribute, *changed(owned_[wrong])};
  if (const auto at = changed(mutable_); at != mutable_.end()) return {Found::kAttribute, *at};
  for (size_t i = 0; i < computed_.size(); ++i)
    if (!same(computed_[i].picture, attribute(computed_[i].owner, computed_[i].name))) return {Found::kComputed, i};
  return {};
}

// Names and objects; other objects are adopted.
ModuleWatch::Change ModuleWatch::check_tensor_table(size_t index) {
  const TensorTable& table = tensor_tables_[index];
  if (static_cast<size_t>(PyDict_Size(table.dict.ptr())) != table.count) return {Found::kNames, index};
  Py_ssize_t place = 0;
  PyObject *name = nullptr, *now = nullptr;
  for (size_t i = table.first; i < table.first + table.count; ++i) {
    if (!PyDict_Next(table.dict.ptr(), &place, &name, &now)) return {Found::kNames, index};
    Tensor& tensor = tensors_[i];
    if (name != tensor.name.ptr() && PyObject_RichCompareBool(name, tensor.name.ptr(), Py_EQ) != 1)
      return PyErr_Clear(), Change{Found::kNames, index};
    if (now == tensor.object.ptr()) continue;
    // A tensor for a parameter is another kind of thing, and so is a lazy parameter that has got its shape.
    if (looks_[i].opaque || !has_type(now, tensor.type)) return {Found::kKind, i};
    tensor.object = nb::borrow(now);
    looks_[i].object = now;
    looks_[i].moved = moved_ = true;
  }
  return {};
}

bool ModuleWatch::same_tensor(size_t index) {
  Look& look = looks_[index];
  if (reinterpret_cast<PyObject*>(Py_TYPE(look.object)) != look.type) return false;
  if (look.object == Py_None) return true;
  if (look.opaque) {
    TensorRef view;
    return !try_view(look.object, view);
  }
  const int64_t* const sizes = dims_.data() + look.dims;
  const TorchFields::Kind kind{look.dtype, look.rank, sizes, sizes + look.rank};
  const TorchFields::Seen seen = torch_fields().read_data(look.object, kind, look.data);
  if (seen == TorchFields::Seen::kOther) return false;
  if (seen == TorchFields::Seen::kUnknown && !read_data(look.object, tensors_[index].kind, look.data)) return false;
  if (!flags_known_ || !look.requires_grad || look.moved) look.requires_grad = bindings::requires_grad(look.object);
  look.moved = false;
  return true;
}

ModuleWatch::Change ModuleWatch::check(int64_t handles) {
  if (const Change change = check_tables(handles); change.found != Found::kNothing) return change;
  if (const Change change = check_attributes(); change.found != Found::kNothing) return change;
  Change change;
  seen_tensor_tables_.first_wrong([&](size_t i) {
    change = check_tensor_table(i);
    return change.found == Found::kNothing;
  });
  if (change.found != Found::kNothing) return change;
  const auto object_at = [&](size_t i) { return looks_[i].opaque ? nb::handle() : nb::handle(looks_[i].object); };
  for (size_t i = 0; i < looks_.size(); ++i) {
    torch_fields().fetch_ahead(i, looks_.size(), object_at);
    if (!same_tensor(i)) return {Found::kKind, i};
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
  // What is asked of PyTorch once is asked here: on the first call two threads could wait for each other.
  module.def(
      "shortcuts",
      [] {
        const nb::object tensor = nb::module_::import_("torch").attr("zeros")(1);
        view_of(tensor);
        requires_grad(tensor);
        version(tensor);
        return nb::make_tuple(dicts_have_versions(), torch_fields().works());
      },
      "Looks for the ways by which calls read dicts and tensors. Returns whether this Python's dicts have versions, "
      "and "
      "whether this PyTorch's tensors can be read directly.");
  nb::class_<ModuleWatch>(module, "ModuleWatch", "A module's Python side as one export saw it; see module_watch.h.")
      .def(nb::init<nb::object, nb::object>(), "plain_types"_a, "tensor_type"_a)
      .def("add_table", &ModuleWatch::add_table, "table"_a, "by_handle"_a = false)
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
