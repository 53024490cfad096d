#include "base/check.h"
#include "bindings.h"
#include "runtime/unplanned_size.h"

namespace nb = nanobind;

namespace lowtide::bindings {
namespace {

const char* python_class(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument: return "InvalidArgument";
    case ErrorKind::kInvalidGraph: return "GraphError";
    case ErrorKind::kInvalidProgram: return "ProgramError";
    case ErrorKind::kUnsupported: return "UnsupportedError";
    case ErrorKind::kOutOfMemory: return "OutOfMemory";
    case ErrorKind::kInterrupted: return nullptr;
    case ErrorKind::kRuntime: return "EngineError";
  }
  return "InternalError";
}

void raise(const char* class_name, const char* message) {
  nb::object type = nb::module_::import_("lowtide.errors").attr(class_name);
  PyErr_SetString(type.ptr(), message);
}

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const UnplannedSize& error) {
    raise("UnplannedSize", error.what());
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kInterrupted) {
      // Python's own handler of the signal has the first word: it may raise something else.
      if (PyErr_CheckSignals() == 0) PyErr_SetString(PyExc_KeyboardInterrupt, error.what());
      return;
    }
    raise(python_class(error.kind()), error.what());
  } catch (const InternalError& error) {
    raise("InternalError", error.what());
  }
}

}  // namespace

void bind_errors(nb::module_&) { nb::register_exception_translator(translate); }

}  // namespace lowtide::bindings
