#include "dlpack.h"

#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "bindings.h"

namespace nb = nanobind;

namespace lowtide::bindings {
namespace {

constexpr int32_t kCpu = 1;
constexpr uint8_t kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kComplex = 5, kBool = 6;

// PyTorch's table lives as long as the process.
std::atomic<const dlpack::ExchangeApi*> exchange{nullptr};

const dlpack::ExchangeApi& api() {
  const dlpack::ExchangeApi* table = exchange.load(std::memory_order_acquire);
  if (table == nullptr) {
    nb::object type = nb::module_::import_("torch").attr("Tensor");
    LT_USER_CHECK(ErrorKind::kUnsupported, nb::hasattr(type, "__dlpack_c_exchange_api__"),
                  "this PyTorch has no DLPack C exchange API; lowtide needs PyTorch 2.10 or newer");
    nb::object capsule = type.attr("__dlpack_c_exchange_api__");
    table = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    if (table == nullptr) throw nb::python_error();
    while (table != nullptr && table->version.major > 1) table = table->previous;
    LT_USER_CHECK(ErrorKind::kUnsupported, table != nullptr && table->from_python != nullptr,
                  "this PyTorch offers no DLPack exchange API of version 1");
    exchange.store(table, std::memory_order_release);
  }
  return *table;
}

std::optional<DType> find_dtype(dlpack::DataType type) {
  if (type.lanes == 1) {
    switch (type.code << 8 | type.bits) {
      case kBool << 8 | 8: return DType::kBool;
      case kUInt << 8 | 8: return DType::kU8;
      case kInt << 8 | 8: return DType::kI8;
      case kInt << 8 | 16: return DType::kI16;
      case kInt << 8 | 32: return DType::kI32;
      case kInt << 8 | 64: return DType::kI64;
      case kBfloat << 8 | 16: return DType::kBF16;
      case kFloat << 8 | 16: return DType::kF16;
      case kFloat << 8 | 32: return DType::kF32;
      case kFloat << 8 | 64: return DType::kF64;
      case kComplex << 8 | 64: return DType::kC64;
      case kComplex << 8 | 128: return DType::kC128;
    }
  }
  return std::nullopt;
}

TensorRef ref_of(const dlpack::Tensor& view, DType dtype) {
  TensorRef ref;
  ref.data = static_cast<char*>(view.data) + view.byte_offset;
  ref.dtype = dtype;
  ref.rank = view.rank;
  ref.present = true;
  int64_t dense = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    ref.sizes[i] = view.sizes[i];
    ref.strides[i] = view.strides != nullptr ? view.strides[i] : dense;
    dense *= view.sizes[i];
  }
  return ref;
}

dlpack::DataType type_of(DType dtype) {
  const auto bits = static_cast<uint8_t>(8 * size_bytes(dtype));
  if (dtype == DType::kBool) return {kBool, bits, 1};
  if (dtype == DType::kU8) return {kUInt, bits, 1};
  if (dtype == DType::kBF16) return {kBfloat, bits, 1};
  if (is_complex(dtype)) return {kComplex, bits, 1};
  return {is_float(dtype) ? kFloat : kInt, bits, 1};
}

// DLPack says nothing of it.
bool is_conjugated(nb::handle tensor, DType dtype) {
  return is_complex(dtype) && nb::cast<bool>(tensor.attr("is_conj")());
}

}  // namespace

TensorRef view_of(nb::handle tensor) {
  if (tensor.is_none()) return {};
  dlpack::Tensor view;
  if (api().from_python(tensor.ptr(), &view) != 0) throw nb::python_error();
  LT_USER_CHECK(ErrorKind::kUnsupported, view.device.type == kCpu,
                "expected a CPU tensor, got one on DLPack device type ", view.device.type);
  LT_USER_CHECK(ErrorKind::kUnsupported, view.rank <= kMaxRank, "a tensor of rank ", view.rank,
                "; the engine takes at most ", kMaxRank);
  const std::optional<DType> dtype = find_dtype(view.dtype);
  LT_USER_CHECK(ErrorKind::kUnsupported, dtype, "a tensor of DLPack type code ", int{view.dtype.code}, ", ",
                int{view.dtype.bits}, " bits has no dtype in lowtide");
  LT_USER_CHECK(ErrorKind::kUnsupported, !is_conjugated(tensor, *dtype),
                "a tensor of complex numbers that are conjugated when they are read; call resolve_conj() on it");
  return ref_of(view, *dtype);
}

bool try_view(nb::handle tensor, TensorRef& ref) {
  dlpack::Tensor view;
  if (tensor.is_none()) return false;
  if (api().from_python(tensor.ptr(), &view) != 0) return PyErr_Clear(), false;
  const std::optional<DType> dtype = find_dtype(view.dtype);
  if (!dtype || view.device.type != kCpu || view.rank > kMaxRank || is_conjugated(tensor, *dtype)) return false;
  ref = ref_of(view, *dtype);
  return true;
}

bool requires_grad(nb::handle tensor) {
  static PyObject* const name = PyUnicode_InternFromString("requires_grad");
  PyObject* const value = PyObject_GetAttr(tensor.ptr(), name);
  if (value == nullptr) throw nb::python_error();
  return nb::steal(value).is(Py_True);
}

bool same_metadata(const TensorRef& a, const TensorRef& b) {
  if (a.dtype != b.dtype || a.rank != b.rank) return false;
  for (int d = 0; d < a.rank; ++d)
    if (a.sizes[d] != b.sizes[d] || (a.sizes[d] > 1 && a.strides[d] != b.strides[d])) return false;
  return true;
}

struct ManyToPython::Owned {
  dlpack::ManagedTensor managed;
  Batch* batch;
  std::shared_ptr<void> owner;
};

// One allocation for all, which has one user for each tensor and one more while they are made.
struct ManyToPython::Batch {
  Batch(size_t count, std::shared_ptr<void> owner)
      : tensors(std::make_unique_for_overwrite<Owned[]>(count)), size(count), owner(std::move(owner)) {}
  std::unique_ptr<Owned[]> tensors;
  size_t size;
  std::shared_ptr<void> owner;
  std::atomic<size_t> users{1};
};

ManyToPython::ManyToPython(size_t count, std::shared_ptr<void> owner) : batch_(new Batch(count, std::move(owner))) {}
ManyToPython::~ManyToPython() { release(batch_); }

void ManyToPython::release(Batch* batch) {
  if (batch->users.fetch_sub(1, std::memory_order_acq_rel) == 1) delete batch;
}

nb::object ManyToPython::next(const TensorRef& metadata, void* data, const std::shared_ptr<void>& owner) {
  LT_CHECK(taken_ < batch_->size, "more tensors than were announced");
  Owned& owned = batch_->tensors[taken_++];
  owned.owner = owner;
  owned.batch = batch_;
  // PyTorch copies sizes and strides before it returns.
  owned.managed = {{1, 0},
                   &owned,
                   [](dlpack::ManagedTensor* managed) {
                     Owned* const freed = static_cast<Owned*>(managed->context);
                     freed->owner.reset();
                     release(freed->batch);
                   },
                   0,
                   {data,
                    {kCpu, 0},
                    metadata.rank,
                    type_of(metadata.dtype),
                    const_cast<int64_t*>(metadata.sizes),
                    const_cast<int64_t*>(metadata.strides),
                    0}};
  batch_->users.fetch_add(1, std::memory_order_relaxed);
  void* tensor = nullptr;
  if (api().managed_to_python(&owned.managed, &tensor) != 0) {
    release(batch_);
    throw nb::python_error();
  }
  return nb::steal(static_cast<PyObject*>(tensor));
}

nb::object to_python(const TensorRef& ref, std::shared_ptr<void> owner) {
  return ManyToPython(1).next(ref, ref.data, owner);
}

nb::tuple span_tuple(const int64_t* values, int count) {
  nb::list items;
  for (int i = 0; i < count; ++i) items.append(values[i]);
  return nb::tuple(items);
}

void bind_tensors(nb::module_& module) {
  // What the engine would see of a tensor: (address, dtype, sizes, strides). For tests and messages.
  module.def("describe_tensor", [](nb::handle tensor) {
    const TensorRef ref = view_of(tensor);
    const std::string_view dtype = name(ref.dtype);
    return nb::make_tuple(reinterpret_cast<uintptr_t>(ref.data), nb::str(dtype.data(), dtype.size()),
                          span_tuple(ref.sizes, ref.rank), span_tuple(ref.strides, ref.rank));
  });
}

}  // namespace lowtide::bindings
