// Tensors across the border of Python by DLPack's C exchange API (dlpack 1.2, Apache-2.0): no C++ type of PyTorch, no
// Python object besides the tensor itself. The structs repeat the published binary layout.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "runtime/tensor.h"

namespace lowtide::bindings {

namespace dlpack {

struct Version {
  uint32_t major, minor;
};
struct Device {
  int32_t type;  // 1: CPU
  int32_t id;
};
struct DataType {
  uint8_t code, bits;
  uint16_t lanes;
};
struct Tensor {
  void* data;
  Device device;
  int32_t rank;
  DataType dtype;
  int64_t* sizes;
  int64_t* strides;
  uint64_t byte_offset;
};
struct ManagedTensor {
  Version version;
  void* context;
  void (*deleter)(ManagedTensor*);
  uint64_t flags;
  Tensor tensor;
};
struct ExchangeApi {
  Version version;
  ExchangeApi* previous;
  int (*allocate)(Tensor*, ManagedTensor**, void*, void (*)(void*, const char*, const char*));
  int (*managed_from_python)(void*, ManagedTensor**);
  int (*managed_to_python)(ManagedTensor*, void**);
  int (*from_python)(void*, Tensor*);
  int (*current_stream)(int32_t, int32_t, void**);
};

}  // namespace dlpack

// A view of a CPU tensor, valid while `tensor` lives and keeps its sizes. None: an absent tensor.
TensorRef view_of(nanobind::handle tensor);
// The same without errors: false for what the engine cannot look at (None, sparse, complex, other devices).
bool try_view(nanobind::handle tensor, TensorRef& ref);
// Whether both have the same dtype, sizes and strides.
bool same_metadata(const TensorRef& a, const TensorRef& b);
bool requires_grad(nanobind::handle tensor);
// Sizes or strides.
nanobind::tuple span_tuple(const int64_t* values, int count);
// A torch.Tensor over the bytes, which `owner` keeps alive until the tensor is freed (by any thread, without Python's
// lock).
nanobind::object to_python(const TensorRef& ref, std::shared_ptr<void> owner);
// The same of many. What keeps the bytes of all of them alive (`owner`) is freed with the last of them.
class ManyToPython {
 public:
  explicit ManyToPython(size_t count, std::shared_ptr<void> owner = nullptr);
  ~ManyToPython();
  ManyToPython(const ManyToPython&) = delete;
  // At most `count` times. `owner`: of this one alone.
  nanobind::object next(const TensorRef& metadata, void* data, const std::shared_ptr<void>& owner = nullptr);

 private:
  struct Batch;
  struct Owned;
  static void release(Batch* batch);
  Batch* batch_;
  size_t taken_ = 0;
};

}  // namespace lowtide::bindings
