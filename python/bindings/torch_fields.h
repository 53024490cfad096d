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

  bool works() const { return works_; }

  enum class Seen { kSame, kOther, kUnknown };
  struct Kind {
    DType dtype;
    int32_t rank;
    const int64_t *sizes, *strides;
  };
  // `tensor`: an instance of torch.Tensor. kSame: its dtype, sizes and strides are those of `kind`, and `data` gets its
  // address. kUnknown: ask DLPack.
  Seen read_data(nanobind::handle tensor, const Kind& kind, void*& data) const;

  // Begins to fetch what read_data reads of tensors[i + kAhead], for a loop over all i. Between two steps hundreds of
  // tensors leave the caches, and fetching them one after another was most of a look's cost. `tensor_at`: an instance
  // of torch.Tensor, or null.
  template <class TensorAt>
  void fetch_ahead(size_t i, size_t count, TensorAt&& tensor_at) const {
    if (!works_) return;
    const auto ahead = [&](size_t stage) {
      return i + stage * kAhead < count ? nanobind::handle(tensor_at(i + stage * kAhead)) : nanobind::handle();
    };
    if (const nanobind::handle tensor = ahead(3)) __builtin_prefetch(handle_of(tensor));
    if (const nanobind::handle tensor = ahead(2))
      for (size_t line = 0; line < kLines; ++line) __builtin_prefetch(fields_of(tensor) + 8 * line);
    if (const nanobind::handle tensor = ahead(1)) __builtin_prefetch(fields_of(tensor)[storage_]);
  }

 private:
  static constexpr size_t kAhead = 6;
  static constexpr size_t kLines = 3;  // of 64 bytes, which the fields fill
  static TorchTensor handle_of(nanobind::handle tensor) {
    return reinterpret_cast<char*>(tensor.ptr()) + sizeof(PyObject);
  }
  // Of PyTorch's own, to prefetch: what the tensor is.
  static const void* const* fields_of(nanobind::handle tensor) {
    return *static_cast<const void* const* const*>(handle_of(tensor));
  }
  bool finds_handles() const;
  size_t find_storage() const;

  TorchSymbols torch_;
  bool works_;
  size_t storage_ = 0;  // which of the fields is the storage; 0: unknown
};

// Of this process's PyTorch.
const TorchFields& torch_fields();

}  // namespace lowtide::bindings
