#include "call_schema.h"

#include <nanobind/stl/set.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/check.h"
#include "bindings.h"
#include "dlpack.h"
#include "equality.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowtide::bindings {

static bool is_exactly(nb::handle object, PyTypeObject* type) { return Py_TYPE(object.ptr()) == type; }

// A 0-d tensor with bytes of its own: a step may still be pending when the next one brings another number.
template <class Value>
static void add_number(Value value, DType dtype, ArgumentTensors& found) {
  auto owner = std::make_shared<Value>(value);
  TensorRef view;
  view.data = owner.get();
  view.dtype = dtype;
  view.present = true;
  const nb::object tensor = to_python(view, owner);
  found.add(tensor, view, false);
}

// Of each object the place of the first that is the same one.
static std::vector<size_t> firsts_of(const std::vector<nb::object>& objects) {
  std::vector<std::pair<PyObject*, size_t>> sorted;
  sorted.reserve(objects.size());
  for (size_t i = 0; i < objects.size(); ++i) sorted.emplace_back(objects[i].ptr(), i);
  std::sort(sorted.begin(), sorted.end());
  std::vector<size_t> firsts(objects.size());
  size_t first = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (i == 0 || sorted[i].first != sorted[i - 1].first) first = sorted[i].second;
    firsts[sorted[i].second] = first;
  }
  return firsts;
}

CallSchema::CallSchema(nb::tuple args, nb::dict kwargs, nb::object named, nb::object snapshot, nb::object tensor_type,
                       std::set<int64_t> numbers)
    : snapshot_(std::move(snapshot)), tensor_type_(std::move(tensor_type)) {
  int64_t leaf = 0;
  args_ = snapshot_of(args, numbers, leaf);
  kwargs_ = snapshot_of(kwargs, numbers, leaf);
  for (const nb::object& key : kwargs_.keys)
    if (PySequence_Contains(named.ptr(), key.ptr()) != 1) unnamed_.push_back(key);
  ArgumentTensors found;
  if (match_all(args, kwargs, found)) firsts_ = firsts_of(found.tensors);
}

CallSchema::Part CallSchema::snapshot_of(nb::handle object, const std::set<int64_t>& numbers, int64_t& leaf) const {
  Part part;
  part.type = nb::borrow(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())));
  if (is_exactly(object, &PyTuple_Type) || is_exactly(object, &PyList_Type)) {
    part.kind = is_exactly(object, &PyTuple_Type) ? Kind::kTuple : Kind::kList;
    for (nb::handle child : object) part.children.push_back(snapshot_of(child, numbers, leaf));
  } else if (is_exactly(object, &PyDict_Type)) {
    part.kind = Kind::kDict;
    for (auto [key, child] : nb::borrow<nb::dict>(object)) {
      part.keys.push_back(nb::borrow(key));
      part.children.push_back(snapshot_of(child, numbers, leaf));
    }
  } else if (PyObject_IsInstance(object.ptr(), tensor_type_.ptr()) == 1) {
    const TensorRef view = view_of(object);
    part.kind = Kind::kTensor;
    part.dtype = view.dtype;
    part.rank = view.rank;
    ++leaf;
  } else if (is_exactly(object, &PyFloat_Type) && numbers.contains(leaf)) {
    part.kind = Kind::kFloat;
    ++leaf;
  } else if (is_exactly(object, &PyLong_Type) && numbers.contains(leaf)) {
    part.kind = Kind::kInt;
    ++leaf;
  } else if (is_exactly(object, &PyUnicode_Type) && numbers.contains(leaf)) {
    part.kind = Kind::kString;
    ++leaf;
  } else {
    const nb::tuple seen = nb::cast<nb::tuple>(snapshot_(object));
    const std::string_view kind = nb::cast<const char*>(seen[0]);
    part.kind = kind == "node" ? Kind::kNode : kind == "plain" ? Kind::kPlain : Kind::kKey;
    part.value = seen[part.kind == Kind::kNode ? 2 : 1];
    if (part.kind != Kind::kNode) ++leaf;
    if (part.kind == Kind::kNode)
      for (nb::handle child : nb::object(seen[1])) part.children.push_back(snapshot_of(child, numbers, leaf));
  }
  return part;
}

bool CallSchema::match(nb::handle args, nb::handle kwargs, ArgumentTensors& found) const {
  return match_all(args, kwargs, found) && firsts_of(found.tensors) == firsts_;
}

bool CallSchema::match_all(nb::handle args, nb::handle kwargs, ArgumentTensors& found) const {
  return match_part(args_, args, found) && match_keywords(kwargs, found);
}

bool CallSchema::match_keywords(nb::handle kwargs, ArgumentTensors& found) const {
  if (static_cast<size_t>(PyDict_Size(kwargs.ptr())) != kwargs_.keys.size()) return false;
  for (size_t i = 0; i < kwargs_.keys.size(); ++i) {
    PyObject* const value = PyDict_GetItemWithError(kwargs.ptr(), kwargs_.keys[i].ptr());
    if (value == nullptr || !match_part(kwargs_.children[i], value, found)) return false;
  }
  if (unnamed_.size() < 2) return true;
  // A forward that takes **kwargs may ask for their order.
  Py_ssize_t place = 0;
  size_t next = 0;
  PyObject* key = nullptr;
  while (PyDict_Next(kwargs.ptr(), &place, &key, nullptr)) {
    bool is_unnamed = false;
    for (const nb::object& name : unnamed_) is_unnamed = is_unnamed || equal(name, key);
    if (is_unnamed && !equal(unnamed_[next++], key)) return false;
  }
  return true;
}

bool CallSchema::match_part(const Part& part, nb::handle object, ArgumentTensors& found) const {
  if (reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())) != part.type.ptr()) return false;
  switch (part.kind) {
    case Kind::kTensor: {
      TensorRef view;
      if (!try_view(object, view) || view.dtype != part.dtype || view.rank != part.rank) return false;
      found.add(object, view, requires_grad(object));
      return true;
    }
    case Kind::kTuple:
    case Kind::kList: {
      const bool is_tuple = part.kind == Kind::kTuple;
      const Py_ssize_t size = is_tuple ? PyTuple_Size(object.ptr()) : PyList_Size(object.ptr());
      if (static_cast<size_t>(size) != part.children.size()) return false;
      for (Py_ssize_t i = 0; i < size; ++i) {
        PyObject* const child = is_tuple ? PyTuple_GetItem(object.ptr(), i) : PyList_GetItem(object.ptr(), i);
        if (!match_part(part.children[static_cast<size_t>(i)], child, found)) return false;
      }
      return true;
    }
    case Kind::kDict: {
      if (static_cast<size_t>(PyDict_Size(object.ptr())) != part.keys.size()) return false;
      Py_ssize_t place = 0;
      PyObject *key = nullptr, *child = nullptr;
      for (size_t i = 0; PyDict_Next(object.ptr(), &place, &key, &child); ++i)
        if (!equal(part.keys[i], key) || !match_part(part.children[i], child, found)) return false;
      return true;
    }
    case Kind::kNode: {
      const nb::tuple seen = nb::cast<nb::tuple>(snapshot_(object));
      if (nb::len(seen) != 3 || !equal(seen[2], part.value)) return false;
      size_t i = 0;
      for (nb::handle child : nb::object(seen[1]))
        if (i == part.children.size() || !match_part(part.children[i++], child, found)) return false;
      return i == part.children.size();
    }
    case Kind::kPlain: return same_value(object, part.value);
    case Kind::kKey: {
      const nb::tuple seen = nb::cast<nb::tuple>(snapshot_(object));
      return equal(seen[1], part.value);
    }
    case Kind::kString: return found.strings.push_back(nb::borrow(object)), true;
    case Kind::kFloat: return add_number(PyFloat_AsDouble(object.ptr()), DType::kF64, found), true;
    case Kind::kInt: {
      int overflow = 0;
      const long long value = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
      if (overflow != 0) return false;
      return add_number(int64_t{value}, DType::kI64, found), true;
    }
  }
  return false;
}

static nb::list list_of(const std::vector<nb::object>& objects) {
  nb::list items;
  for (const nb::object& object : objects) items.append(object);
  return items;
}

static nb::object sizes(ArgumentTensors& seen) {
  if (seen.sizes.is_valid()) return seen.sizes;
  PyObject* const all = PyTuple_New(static_cast<Py_ssize_t>(seen.views.size()));
  if (all == nullptr) throw nb::python_error();
  for (size_t i = 0; i < seen.views.size(); ++i) {
    const TensorRef& view = seen.views[i];
    PyObject* const one = PyTuple_New(view.rank);
    if (one == nullptr) throw nb::python_error();
    for (int d = 0; d < view.rank; ++d) PyTuple_SetItem(one, d, PyLong_FromLongLong(view.sizes[d]));
    PyTuple_SetItem(all, static_cast<Py_ssize_t>(i), one);
  }
  seen.sizes = nb::steal<nb::tuple>(all);
  return seen.sizes;
}

void bind_calls(nb::module_& module) {
  nb::class_<ArgumentTensors>(module, "ArgumentTensors",
                              "The tensors among a call's arguments, in the order of the tree.")
      .def_prop_ro("tensors", [](const ArgumentTensors& self) { return list_of(self.tensors); })
      .def_prop_ro("strings", [](const ArgumentTensors& self) { return list_of(self.strings); })
      .def("sizes", sizes);
  nb::class_<CallSchema>(module, "CallSchema", "What calls must share for one graph; see call_schema.h.")
      .def(nb::init<nb::tuple, nb::dict, nb::object, nb::object, nb::object, std::set<int64_t>>(), "args"_a, "kwargs"_a,
           "named"_a, "snapshot"_a, "tensor_type"_a, "numbers"_a = std::set<int64_t>())
      .def(
          "match",
          [](const CallSchema& self, nb::tuple args, nb::dict kwargs) -> nb::object {
            ArgumentTensors found;
            return self.match(args, kwargs, found) ? nb::cast(std::move(found)) : nb::none();
          },
          "args"_a, "kwargs"_a, "ArgumentTensors, or None where the call is of another schema.");
}

}  // namespace lowtide::bindings
