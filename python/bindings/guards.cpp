#include "guards.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "base/check.h"
#include "bindings.h"
#include "dlpack.h"
#include "equality.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowtide::bindings {
namespace {

bool has_type(nb::handle object, const nb::object& type) {
  return reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())) == type.ptr();
}

Py_ssize_t size_of(nb::handle list) {  // by no code of users'
  return PyList_Check(list.ptr()) ? PyList_Size(list.ptr()) : PyTuple_Size(list.ptr());
}

}  // namespace

size_t Guards::add(size_t parent, Way way, nb::object key, Expected expected, nb::object value) {
  LT_USER_CHECK(ErrorKind::kInvalidArgument, way == Way::kRoot || parent < places_.size(), "a place before its parent");
  Place place{parent, way, expected, std::move(key), {}, {}, 0};
  if (way == Way::kRoot) place.key = value;
  const bool fits = expected == Expected::kKeys   ? PyDict_Check(value.ptr())
                    : expected == Expected::kSet  ? PyAnySet_Check(value.ptr())
                    : expected == Expected::kSize ? PyList_Check(value.ptr()) || PyTuple_Check(value.ptr())
                                                  : true;
  LT_USER_CHECK(ErrorKind::kInvalidArgument, fits, "a place that is no container of its kind");
  if (expected != Expected::kAnything && expected != Expected::kNothing)
    place.type = nb::borrow(reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())));
  if (expected == Expected::kTensor) {
    TensorRef view;
    LT_USER_CHECK(ErrorKind::kUnsupported, try_view(value, view), "a tensor that the engine cannot look at");
    place_of_.push_back(places_.size());
    metadata_.push_back(view);
    // Its object is held while places are added only: afterwards the tensors may come and go.
    const auto same =
        std::find_if(tensors_.begin(), tensors_.end(), [&](const Tensor& tensor) { return tensor.object.is(value); });
    first_.push_back(static_cast<size_t>(same - tensors_.begin()));
    tensors_.push_back({std::move(value), metadata_.back(), false});
  } else if (expected == Expected::kKeys) {
    place.value = nb::steal(PySequence_Tuple(value.ptr()));
  } else if (expected == Expected::kSet) {
    place.value = nb::steal(PyFrozenSet_New(value.ptr()));
  } else if (expected == Expected::kSize) {
    place.size = size_of(value);
  } else if (expected != Expected::kAnything && expected != Expected::kNothing) {
    place.value = std::move(value);
  }
  tensor_of_.push_back(tensors_.size() - 1);
  places_.push_back(std::move(place));
  return places_.size() - 1;
}

// Null where there is nothing.
nb::object Guards::reach(const Place& place, nb::handle parent) const {
  if (place.way == Way::kRoot) return place.key;
  if (!parent.is_valid()) return {};
  PyObject* found = nullptr;
  switch (place.way) {
    case Way::kRoot: break;
    case Way::kDict: found = PyObject_GenericGetDict(parent.ptr(), nullptr); break;
    case Way::kType: return nb::borrow(reinterpret_cast<PyObject*>(Py_TYPE(parent.ptr())));
    case Way::kAttribute: found = PyObject_GetAttr(parent.ptr(), place.key.ptr()); break;
    case Way::kResult: found = PyObject_CallNoArgs(parent.ptr()); break;
    case Way::kItem:
      if (PyDict_Check(parent.ptr())) {
        found = PyDict_GetItemWithError(parent.ptr(), place.key.ptr());
      } else if (PyList_Check(parent.ptr())) {
        found = PyList_GetItem(parent.ptr(), PyLong_AsSsize_t(place.key.ptr()));
      } else if (PyTuple_Check(parent.ptr())) {
        found = PyTuple_GetItem(parent.ptr(), PyLong_AsSsize_t(place.key.ptr()));
      } else {
        found = PyObject_GetItem(parent.ptr(), place.key.ptr());
        break;
      }
      Py_XINCREF(found);
  }
  if (found == nullptr) PyErr_Clear();
  return nb::steal(found);
}

bool Guards::has_right_keys(const Place& place, nb::handle now) const {
  const Py_ssize_t count = PyTuple_Size(place.value.ptr());
  if (PyDict_Size(now.ptr()) != count) return false;
  Py_ssize_t at = 0;
  PyObject* key = nullptr;
  for (Py_ssize_t i = 0; i < count; ++i)
    if (!PyDict_Next(now.ptr(), &at, &key, nullptr) || !equal(key, PyTuple_GetItem(place.value.ptr(), i))) return false;
  return true;
}

bool Guards::is_right(const Place& place, nb::handle now, size_t index) {
  if (place.is_left_out) return true;
  if (place.expected == Expected::kNothing) return !now.is_valid();
  if (!now.is_valid()) return false;
  switch (place.expected) {
    case Expected::kAnything:
    case Expected::kNothing: return true;
    case Expected::kSame: return now.is(place.value);
    case Expected::kEqual: return now.is(place.value) || (has_type(now, place.type) && same_value(now, place.value));
    case Expected::kSize: return has_type(now, place.type) && size_of(now) == place.size;
    case Expected::kKeys: return has_type(now, place.type) && has_right_keys(place, now);
    case Expected::kSet: return has_type(now, place.type) && equal(now, place.value);
    case Expected::kKey: return equal(key_of_(now), place.value);
    case Expected::kTensor: break;
  }
  const size_t number = tensor_of_[index];
  Tensor& seen = tensors_[number];
  if (!has_type(now, place.type) || !try_view(now, seen.view) || !same_metadata(seen.view, metadata_[number]))
    return false;
  seen.object = nb::borrow(now);
  seen.requires_grad = requires_grad(now);
  return true;
}

// Which names share a tensor is a part of the graph.
std::optional<size_t> Guards::find_shared() const {
  std::vector<size_t> order;
  for (size_t i = 0; i < tensors_.size(); ++i)
    if (!places_[place_of_[i]].is_left_out) order.push_back(i);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(tensors_[a].object.ptr(), a) < std::pair(tensors_[b].object.ptr(), b);
  });
  for (size_t i = 0; i < order.size(); ++i) {
    const bool is_first = i == 0 || !tensors_[order[i]].object.is(tensors_[order[i - 1]].object);
    const size_t first = is_first ? order[i] : first_[order[i - 1]];
    if (first_[order[i]] != first) return place_of_[order[i]];
  }
  return std::nullopt;
}

// The first of tensors_ that is the object.
std::optional<size_t> Guards::find_tensor(nb::handle object) const {
  for (size_t i = 0; i < tensors_.size(); ++i)
    if (tensors_[i].object.is(object) && !places_[place_of_[i]].is_left_out) return i;
  return std::nullopt;
}

std::vector<std::optional<size_t>> Guards::expect_arguments(nb::list tensors) {
  arguments_.clear();
  std::vector<std::optional<size_t>> places;
  for (nb::handle tensor : tensors) {
    const std::optional<size_t> found = find_tensor(tensor);
    arguments_.push_back(found);
    places.push_back(found ? std::optional(place_of_[*found]) : std::nullopt);
  }
  return places;
}

std::optional<size_t> Guards::find_other_argument(nb::list tensors) const {
  size_t index = 0;
  for (nb::handle tensor : tensors) {
    const std::optional<size_t> expected = index < arguments_.size() ? arguments_[index] : std::nullopt;
    if (find_tensor(tensor) != expected) return index;
    ++index;
  }
  return std::nullopt;
}

std::optional<Guards::Broken> Guards::find_broken() {
  now_.clear();
  now_.reserve(places_.size());
  std::optional<Broken> broken;
  for (size_t i = 0; i < places_.size() && !broken; ++i) {
    const Place& place = places_[i];
    now_.push_back(reach(place, place.way == Way::kRoot ? nb::handle() : nb::handle(now_[place.parent])));
    if (!is_right(place, now_.back(), i)) broken = Broken{i};
  }
  if (!broken)
    if (const std::optional<size_t> place = find_shared()) broken = Broken{*place, true};
  now_.clear();
  if (broken) release();
  return broken;
}

void Guards::release() {
  for (Tensor& tensor : tensors_) tensor.object.reset();
}

void bind_guards(nb::module_& module) {
  nb::class_<Guards> guards(module, "Guards", "What a graph depends on of Python's objects; see guards.h.");
  nb::enum_<Way>(guards, "Way")
      .value("ROOT", Way::kRoot)
      .value("DICT", Way::kDict)
      .value("ITEM", Way::kItem)
      .value("ATTRIBUTE", Way::kAttribute)
      .value("TYPE", Way::kType)
      .value("RESULT", Way::kResult);
  nb::enum_<Expected>(guards, "Expected")
      .value("ANYTHING", Expected::kAnything)
      .value("NOTHING", Expected::kNothing)
      .value("SAME", Expected::kSame)
      .value("EQUAL", Expected::kEqual)
      .value("SIZE", Expected::kSize)
      .value("KEYS", Expected::kKeys)
      .value("SET", Expected::kSet)
      .value("TENSOR", Expected::kTensor)
      .value("KEY", Expected::kKey);
  guards.def(nb::init<nb::object>(), "key_of"_a)
      .def("add", &Guards::add, "parent"_a, "way"_a, "key"_a.none(), "expected"_a, "value"_a.none(),
           "Returns the number of the place; its parent's is that of an earlier one.")
      .def(
          "find_broken",
          [](Guards& self) -> nb::object {
            const std::optional<Guards::Broken> broken = self.find_broken();
            return broken ? nb::object(nb::make_tuple(broken->place, broken->shares)) : nb::none();
          },
          "None, or (number of the first place where something else is, whether only what it shares is another).")
      .def("expect_arguments", &Guards::expect_arguments, "tensors"_a,
           "Of each tensor of a call the number of the place where it is, or None: while places are added.")
      .def("find_other_argument", &Guards::find_other_argument, "tensors"_a,
           "The index of the first that is at another place than the expected one, after find_broken; or None.")
      .def("leave_out", &Guards::leave_out, "place"_a, "Whatever is there, or nothing, is right from now on.")
      .def("release", &Guards::release, "Lets go of the tensors that the latest find_broken saw.");
}

}  // namespace lowtide::bindings
