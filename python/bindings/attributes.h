// Attributes and sizes between Python and the graph.
#pragma once

#include <nanobind/nanobind.h>

#include "ir/graph.h"

namespace lowtide::bindings {

// An int, or text that parse_dim reads.
Dim dim_from(nanobind::handle value);
Shape shape_from(nanobind::handle values);
DType dtype_from(nanobind::handle name);

// From pairs name → (type, value): type is "bool", "int", "float", "string", "dtype", "ints", "floats" or "strings".
// Text alone would not tell a string from a symbolic size, nor an empty list of ints from one of floats.
Attrs attrs_from(const nanobind::dict& entries);
// A dict of bool, int, float, str (dtypes by their names) and lists of these.
nanobind::dict attrs_to_python(const BoundAttrs& attrs);
// Sizes as ints, or as text that parse_dim reads; the inverses of dim_from, shape_from and attrs_from.
nanobind::object size_to_python(const Dim& size);
nanobind::list sizes_to_python(const Shape& sizes);
nanobind::dict typed_attrs(const Attrs& attrs);

}  // namespace lowtide::bindings
