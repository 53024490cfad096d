#include "torch_fields.h"

namespace nb = nanobind;

namespace lowtide::bindings {
namespace {

// Of c10's enums, frozen by the stable ABI.
constexpr int32_t kCpu = 0;

int32_t scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kU8: return 0;
    case DType::kI8: return 1;
    case DType::kI16: return 2;
    case DType::kI32: return 3;
    case DType::kI64: return 4;
    case DType::kF16: return 5;
    case DType::kF32: return 6;
    case DType::kF64: return 7;
    case DType::kBool: return 11;
    case DType::kBF16: return 15;
    default: return -1;
  }
}

}  // namespace

TorchFields::TorchFields() : torch_(load_torch_symbols()), works_(finds_handles()), storage_(find_storage()) {}

// An at::Tensor is one pointer; PyTorch makes us another to the same tensor.
bool TorchFields::finds_handles() const {
  if (!torch_.get_data_ptr || !torch_.get_dim || !torch_.get_sizes || !torch_.get_strides || !torch_.get_dtype ||
      !torch_.get_device_type || !torch_.delete_tensor)
    return false;
  try {
    const nb::module_ torch = nb::module_::import_("torch");
    const nb::object tensor = torch.attr("zeros")(1), parameter = torch.attr("nn").attr("Parameter")(tensor);
    for (const nb::object& object : {tensor, parameter}) {
      if (nb::cast<size_t>(object.type().attr("__basicsize__")) < sizeof(PyObject) + sizeof(void*)) return false;
      const nb::object capsule = torch.attr("_C").attr("_aoti").attr("unsafe_alloc_void_ptr_from_tensor")(object);
      TorchTensor const made = PyCapsule_GetPointer(capsule.ptr(), nullptr);
      if (made == nullptr) return PyErr_Clear(), false;
      const bool is_same = *static_cast<void**>(made) == *static_cast<void**>(handle_of(object));
      torch_.delete_tensor(made);
      if (!is_same) return false;
    }
  } catch (const nb::python_error&) {
    return false;  // a PyTorch without that function
  }
  return true;
}

size_t TorchFields::find_storage() const {
  if (!works_) return 0;
  try {
    const nb::object tensor = nb::module_::import_("torch").attr("zeros")(1);
    const auto storage = nb::cast<uintptr_t>(tensor.attr("untyped_storage")().attr("_cdata"));
    for (size_t i = 1; i < 8; ++i)
      if (reinterpret_cast<uintptr_t>(fields_of(tensor)[i]) == storage) return i;
  } catch (const nb::python_error&) {
  }
  return 0;
}

TorchFields::Seen TorchFields::read_data(nb::handle tensor, const Kind& kind, void*& data) const {
  if (!works_) return Seen::kUnknown;
  TorchTensor const handle = handle_of(tensor);
  int64_t rank = 0, *sizes = nullptr, *strides = nullptr;
  int32_t dtype = 0, device = 0;
  if (torch_.get_dim(handle, &rank) != 0 || torch_.get_sizes(handle, &sizes) != 0 ||
      torch_.get_strides(handle, &strides) != 0 || torch_.get_dtype(handle, &dtype) != 0 ||
      torch_.get_device_type(handle, &device) != 0)
    return Seen::kUnknown;
  if (rank != kind.rank || device != kCpu || dtype != scalar_type(kind.dtype)) return Seen::kOther;
  for (int64_t i = 0; i < rank; ++i)
    if (sizes[i] != kind.sizes[i] || (sizes[i] > 1 && strides[i] != kind.strides[i])) return Seen::kOther;
  return torch_.get_data_ptr(handle, &data) == 0 ? Seen::kSame : Seen::kUnknown;
}

const TorchFields& torch_fields() {
  static const TorchFields fields;
  return fields;
}

}  // namespace lowtide::bindings
