#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowtide::bindings {
namespace {

// As Python's isinstance(), which a trace asks millions of times. `state`: (what answers for the classes, the classes).
PyObject* is_instance(PyObject* state, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2) {
    PyErr_Format(PyExc_TypeError, "isinstance expected 2 arguments, got %zd", count);
    return nullptr;
  }
  const int found = PyObject_IsInstance(arguments[0], arguments[1]);
  if (found < 0) {
    return nullptr;
  }
  if (found == 0) {
    PyObject* const cls = reinterpret_cast<PyObject*>(Py_TYPE(arguments[0]));
    for (Py_ssize_t i = PyTuple_Size(state) - 1; i > 0; --i) {
      if (PyTuple_GetItem(state, i) == cls) {
        return PyObject_CallFunctionObjArgs(PyTuple_GetItem(state, 0), arguments[0], arguments[1], nullptr);
      }
    }
  }
  return PyBool_FromLong(found);
}

PyMethodDef definition = {"isinstance", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(is_instance)),
                          METH_FASTCALL, "isinstance(), where some classes have an answer of their own."};

}  // namespace

void bind_instances(nb::module_& module) {
  module.def(
      "isinstance_with",
      [](const nb::object& answer, const nb::args& classes) {
        return nb::steal(PyCFunction_NewEx(&definition, nb::object(nb::make_tuple(answer) + classes).ptr(), nullptr));
      },
      "answer"_a, "classes"_a,
      "An isinstance() that asks answer(thing, classes) about things of these very classes where Python says no.");
}

}  // namespace lowtide::bindings
