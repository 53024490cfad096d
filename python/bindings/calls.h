#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "runtime/calls.h"

namespace lowtide::bindings {

// Hands the engine's calls out to a Python object with
//   forward(target, attrs, inputs, outputs, wants_context, needs_grad) -> context object or None
//   backward(context, gradients, outputs)
//   begin(target, attrs, inputs, outputs) -> a function that waits until the call has ended
// The tensors are views of the engine's memory; absent ones are None.
class PythonCalls : public std::enable_shared_from_this<PythonCalls> {
 public:
  explicit PythonCalls(nanobind::object handler) : handler_(std::move(handler)) {}
  CallHandler handler();
  // Raises in Python what the last call raised, if the engine stopped because of it. Needs Python's lock.
  void rethrow();

 private:
  KernelStatus forward(const CallRequest& request, CallContext* context);
  KernelStatus backward(const CallGradRequest& request);
  KernelStatus begin(const CallRequest& request, PendingCall* pending);
  template <class Body>
  KernelStatus guarded(Body&& body);

  nanobind::object handler_;
  nanobind::object raised_;
  std::string message_;
};

}  // namespace lowtide::bindings
