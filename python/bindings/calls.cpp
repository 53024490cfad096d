#include "calls.h"

#include "attributes.h"
#include "dlpack.h"

namespace nb = nanobind;

namespace lowtide::bindings {
namespace {

nb::list views(std::span<const TensorRef> refs) {
  nb::list items;
  for (const TensorRef& ref : refs) items.append(ref.present ? to_python(ref, nullptr) : nb::none());
  return items;
}

// A Python object that any thread may drop.
CallContext keep(nb::object object) {
  return CallContext(object.release().ptr(), [](void* pointer) {
    if (!Py_IsInitialized()) return;
    nb::gil_scoped_acquire lock;
    Py_DECREF(static_cast<PyObject*>(pointer));
  });
}

}  // namespace

CallHandler PythonCalls::handler() {
  // The session's steps and this object hold the handler together; pending states keep neither.
  auto self = shared_from_this();
  return {[self](const CallRequest& request, CallContext* context) { return self->forward(request, context); },
          [self](const CallGradRequest& request) { return self->backward(request); },
          [self](const CallRequest& request, PendingCall* pending) { return self->begin(request, pending); }};
}

template <class Body>
KernelStatus PythonCalls::guarded(Body&& body) {
  nb::gil_scoped_acquire lock;
  try {
    body();
    return nullptr;
  } catch (nb::python_error& error) {
    raised_ = nb::borrow(error.value());
    message_ = error.what();
  } catch (const std::exception& error) {
    message_ = error.what();
  }
  return message_.c_str();
}

KernelStatus PythonCalls::forward(const CallRequest& request, CallContext* context) {
  return guarded([&] {
    nb::object result =
        handler_.attr("forward")(request.target->c_str(), attrs_to_python(*request.attrs), views(request.inputs),
                                 views(request.outputs), request.wants_context, request.needs_grad);
    if (context != nullptr && request.wants_context) *context = keep(std::move(result));
  });
}

KernelStatus PythonCalls::begin(const CallRequest& request, PendingCall* pending) {
  return guarded([&] {
    const CallContext wait = keep(handler_.attr("begin")(request.target->c_str(), attrs_to_python(*request.attrs),
                                                         views(request.inputs), views(request.outputs)));
    *pending = [self = shared_from_this(), wait] {
      return self->guarded([&] { nb::handle(static_cast<PyObject*>(wait.get()))(); });
    };
  });
}

KernelStatus PythonCalls::backward(const CallGradRequest& request) {
  return guarded([&] {
    handler_.attr("backward")(nb::handle(static_cast<PyObject*>(request.context.get())), views(request.gradients),
                              views(request.outputs));
  });
}

void PythonCalls::rethrow() {
  if (!raised_.is_valid()) return;
  nb::object raised = std::move(raised_);
  raised_ = nb::object();
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.ptr())), raised.ptr());
  throw nb::python_error();
}

}  // namespace lowtide::bindings
