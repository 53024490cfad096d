// Calls out of the engine: ops that run on PyTorch through the host language.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/tensor.h"

namespace lowtide {

struct CallRequest {
  const std::string* target;  // "aten::histc.default", or "module.Class" of a PythonOp
  const BoundAttrs* attrs;    // `operands` and the non-tensor arguments; PythonOp: `call`
  std::span<const TensorRef>
      inputs;  // views of our memory, valid until the context is dropped if `wants_context`, else during the call
  std::span<const TensorRef>
      outputs;                 // where the results go: the handler copies them there (shapes and dtypes are fixed)
  bool wants_context = false;  // run under autograd and return what backward needs
  uint32_t needs_grad = 0;     // bit i: input i needs a gradient (wants_context only; the first 32 inputs)
};
struct CallGradRequest {
  CallContext context;
  std::span<const TensorRef> gradients;  // of the forward's outputs; absent ones count as none
  std::span<const TensorRef> outputs;    // gradients of the forward's inputs; absent where not wanted; written by the
                                         // handler (zeros where PyTorch gives None)
};

// Waits until a begun call has ended; called once. As the functions below.
using PendingCall = std::function<KernelStatus()>;

// All return nullptr or a message (static, or kept by the handler until its next call); they must not throw.
struct CallHandler {
  std::function<KernelStatus(const CallRequest&, CallContext* context)> forward;
  std::function<KernelStatus(const CallGradRequest&)> backward;
  // Begins a call that goes on until `pending` has been waited for, or that has ended where it leaves that empty. The
  // request's tensors stay valid until then.
  std::function<KernelStatus(const CallRequest&, PendingCall* pending)> begin;
};

}  // namespace lowtide
