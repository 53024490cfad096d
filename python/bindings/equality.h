// Python values compared, as graphs know them.
#pragma once

#include <nanobind/nanobind.h>

#include <cstring>

namespace lowtide::bindings {

// An object that cannot be compared is another one.
inline bool equal(nanobind::handle a, nanobind::handle b) {
  if (a.is(b)) return true;
  const int result = PyObject_RichCompareBool(a.ptr(), b.ptr(), Py_EQ);
  if (result < 0) PyErr_Clear();
  return result == 1;
}

inline bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

// Of two of one type: 0.0 and -0.0 are two values, and a NaN is the same as itself.
inline bool same_value(nanobind::handle a, nanobind::handle b) {
  if (PyFloat_CheckExact(b.ptr())) return same_bits(PyFloat_AsDouble(a.ptr()), PyFloat_AsDouble(b.ptr()));
  if (PyComplex_CheckExact(b.ptr()))
    return same_bits(PyComplex_RealAsDouble(a.ptr()), PyComplex_RealAsDouble(b.ptr())) &&
           same_bits(PyComplex_ImagAsDouble(a.ptr()), PyComplex_ImagAsDouble(b.ptr()));
  return equal(a, b);
}

}  // namespace lowtide::bindings
