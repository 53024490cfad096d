#pragma once

#include <nanobind/nanobind.h>

#include "runtime/tensor.h"
#include "torch_symbols/torch_symbols.h"

namespace lowtide::bindings {

// Reads tensors through PyTorch's stable C ABI, at a third of DLPack's cost.
//
// That ABI knows no Python objects: a tensor's handle is the address of the at::Tensor within its object. Where that
// lies is PyTorch's own matter, so PyTorch is asked once, and without a clear answer nothing is read.
class TorchFields {
 public:
  TorchFields();

  enum class Seen { kSame, kOther, kUnknown };
  // `tensor`: an instance of torch.Tensor. kSame: its dtype, sizes and strides are those of `known`, which gets its
  // address; `where` gets a place within the tensor's own bytes in PyTorch. kUnknown: ask DLPack.
  Seen refresh(nanobind::handle tensor, TensorRef& known, const void*& where) const;

 private:
  static TorchTensor handle_of(nanobind::handle tensor);
  bool finds_handles() const;

  TorchSymbols torch_;
  bool works_;
};

}  // namespace lowtide::bindings
