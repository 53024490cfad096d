#include "attributes.h"

namespace nb = nanobind;

namespace lowtide::bindings {
namespace {

std::string text_from(nb::handle value) {
  LT_USER_CHECK(ErrorKind::kInvalidArgument, nb::isinstance<nb::str>(value), "expected text, found ",
                nb::repr(value).c_str());
  return nb::borrow<nb::str>(value).c_str();
}

double float_from(nb::handle value) {
  const double number = PyFloat_AsDouble(value.ptr());
  if (number == -1 && PyErr_Occurred()) throw nb::python_error();
  return number;
}

AttrValue<Dim> attr_from(std::string_view type, nb::handle value) {
  if (type == "bool") return value.is(nb::handle(Py_True));
  if (type == "int") return dim_from(value);
  if (type == "float") return float_from(value);
  if (type == "string") return text_from(value);
  if (type == "dtype") return dtype_from(value);
  if (type == "ints") return std::vector<Dim>(shape_from(value));
  if (type == "floats") {
    std::vector<double> items;
    for (nb::handle item : value) items.push_back(float_from(item));
    return items;
  }
  LT_USER_CHECK(ErrorKind::kInvalidArgument, type == "strings", "no attribute has the type ", type);
  std::vector<std::string> items;
  for (nb::handle item : value) items.push_back(text_from(item));
  return items;
}

struct ToPython {
  nb::object operator()(bool value) const { return nb::bool_(value); }
  nb::object operator()(int64_t value) const { return nb::int_(value); }
  nb::object operator()(const Dim& value) const { return size_to_python(value); }
  nb::object operator()(double value) const { return nb::float_(value); }
  nb::object operator()(const std::string& value) const { return nb::str(value.c_str(), value.size()); }
  nb::object operator()(DType value) const { return nb::str(name(value).data(), name(value).size()); }
  template <class T>
  nb::object operator()(const std::vector<T>& values) const {
    nb::list items;
    for (const T& value : values) items.append((*this)(value));
    return items;
  }
};

struct TypeOf {
  const char* operator()(bool) const { return "bool"; }
  const char* operator()(const Dim&) const { return "int"; }
  const char* operator()(double) const { return "float"; }
  const char* operator()(const std::string&) const { return "string"; }
  const char* operator()(DType) const { return "dtype"; }
  const char* operator()(const std::vector<Dim>&) const { return "ints"; }
  const char* operator()(const std::vector<double>&) const { return "floats"; }
  const char* operator()(const std::vector<std::string>&) const { return "strings"; }
};

}  // namespace

Dim dim_from(nb::handle value) {
  if (nb::isinstance<nb::str>(value)) return parse_dim(nb::borrow<nb::str>(value).c_str());
  const long long number = PyLong_AsLongLong(value.ptr());
  if (number == -1 && PyErr_Occurred()) throw nb::python_error();
  return Dim(static_cast<int64_t>(number));
}

Shape shape_from(nb::handle values) {
  Shape shape;
  for (nb::handle value : values) shape.push_back(dim_from(value));
  return shape;
}

DType dtype_from(nb::handle value) {
  const std::string text = text_from(value);
  const std::optional<DType> dtype = parse_dtype(text);
  LT_USER_CHECK(ErrorKind::kInvalidArgument, dtype.has_value(), "no dtype is called ", text);
  return *dtype;
}

Attrs attrs_from(const nb::dict& entries) {
  Attrs attrs;
  for (auto [key, entry] : entries) {
    nb::tuple pair = nb::cast<nb::tuple>(entry);
    attrs.set(text_from(key), attr_from(text_from(pair[0]), pair[1]));
  }
  return attrs;
}

nb::object size_to_python(const Dim& size) {
  if (size.is_constant()) return nb::int_(size.constant());
  const std::string text = to_string(size);
  return nb::str(text.c_str(), text.size());
}

nb::list sizes_to_python(const Shape& sizes) {
  nb::list items;
  for (const Dim& size : sizes) items.append(size_to_python(size));
  return items;
}

nb::dict typed_attrs(const Attrs& attrs) {
  nb::dict result;
  for (const auto& [name, value] : attrs)
    result[name.c_str()] = nb::make_tuple(std::visit(TypeOf{}, value), std::visit(ToPython{}, value));
  return result;
}

nb::dict attrs_to_python(const BoundAttrs& attrs) {
  nb::dict result;
  for (const auto& [name, value] : attrs) result[name.c_str()] = std::visit(ToPython{}, value);
  return result;
}

}  // namespace lowtide::bindings
