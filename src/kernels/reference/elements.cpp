#include "kernels/reference/elements.h"

#include "base/half.h"
#include "kernels/reference/states.h"

namespace lowtide::reference {

namespace {

template <size_t kSize>
struct Bytes {
  char at[kSize];
};

struct Bool {
  uint8_t byte;
};

// Calls body with a null pointer of the storage type of `dtype`.
template <class Body>
void with_storage(DType dtype, Body body) {
  switch (dtype) {
    case DType::kBool: return body(static_cast<Bool*>(nullptr));
    case DType::kU8: return body(static_cast<uint8_t*>(nullptr));
    case DType::kI8: return body(static_cast<int8_t*>(nullptr));
    case DType::kI16: return body(static_cast<int16_t*>(nullptr));
    case DType::kI32: return body(static_cast<int32_t*>(nullptr));
    case DType::kI64: return body(static_cast<int64_t*>(nullptr));
    case DType::kBF16: return body(static_cast<BFloat16*>(nullptr));
    case DType::kF16: return body(static_cast<Float16*>(nullptr));
    case DType::kF32: return body(static_cast<float*>(nullptr));
    case DType::kF64: return body(static_cast<double*>(nullptr));
    case DType::kC64:
    case DType::kC128:  // moved by their bytes, computed by PyTorch
    case DType::kContext: return;
  }
}

int64_t truncate(double value) {
  return value >= -0x1p63 && value < 0x1p63 ? static_cast<int64_t>(value) : std::numeric_limits<int64_t>::min();
}

template <class To, class From>
To convert(From value) {
  constexpr bool kFromHalf = std::is_same_v<From, BFloat16> || std::is_same_v<From, Float16>;
  constexpr bool kToHalf = std::is_same_v<To, BFloat16> || std::is_same_v<To, Float16>;
  if constexpr (std::is_same_v<From, Bool>) {
    return static_cast<To>(value.byte);
  } else if constexpr (kFromHalf) {
    return convert<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, Bool>) {
    return Bool{static_cast<uint8_t>(value != 0)};
  } else if constexpr (kToHalf) {
    return To(static_cast<float>(value));
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    return static_cast<To>(truncate(value));
  } else {
    return static_cast<To>(value);
  }
}

template <class Value>
void load_as(const TensorRef& tensor, int64_t offset, int64_t stride, int64_t n, Value* values) {
  with_storage(tensor.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* from = static_cast<const T*>(tensor.data) + offset;
    if (stride == 1) {
      for (int64_t i = 0; i < n; ++i) values[i] = convert<Value>(from[i]);
    } else {
      for (int64_t i = 0; i < n; ++i) values[i] = convert<Value>(from[i * stride]);
    }
  });
}

template <class Value>
void store_as(const TensorRef& tensor, int64_t offset, int64_t stride, int64_t n, const Value* values) {
  with_storage(tensor.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    T* to = static_cast<T*>(tensor.data) + offset;
    for (int64_t i = 0; i < n; ++i) to[i * stride] = convert<T>(values[i]);
  });
}

template <class T>
void copy_as(void* dst, int64_t dst_stride, const void* src, int64_t src_stride, int64_t n) {
  T* to = static_cast<T*>(dst);
  const T* from = static_cast<const T*>(src);
  for (int64_t i = 0; i < n; ++i) to[i * dst_stride] = from[i * src_stride];
}

}  // namespace

void load(const TensorRef& tensor, int64_t offset, int64_t stride, int64_t n, double* values) {
  load_as(tensor, offset, stride, n, values);
}
void load(const TensorRef& tensor, int64_t offset, int64_t stride, int64_t n, int64_t* values) {
  load_as(tensor, offset, stride, n, values);
}
void store(const TensorRef& tensor, int64_t offset, int64_t stride, int64_t n, const double* values) {
  store_as(tensor, offset, stride, n, values);
}
void store(const TensorRef& tensor, int64_t offset, int64_t stride, int64_t n, const int64_t* values) {
  store_as(tensor, offset, stride, n, values);
}

double get_converted(const TensorRef& tensor, int64_t offset) {
  double value = 0;
  load_as(tensor, offset, 1, 1, &value);
  return value;
}
int64_t get_int(const TensorRef& tensor, int64_t offset) {
  if (tensor.dtype == DType::kI64) return tensor.as<int64_t>()[offset];
  int64_t value = 0;
  load_as(tensor, offset, 1, 1, &value);
  return value;
}
void set_converted(const TensorRef& tensor, int64_t offset, double value) { store_as(tensor, offset, 1, 1, &value); }
void set_int(const TensorRef& tensor, int64_t offset, int64_t value) { store_as(tensor, offset, 1, 1, &value); }

void round_to(DType dtype, double* values, int64_t n) {
  if (dtype == DType::kF64) return;
  float storage[kRun];
  TensorRef rounded;
  rounded.data = storage;
  rounded.dtype = dtype;
  store(rounded, 0, 1, n, values);
  load(rounded, 0, 1, n, values);
}

void copy_elements(void* dst, int64_t dst_stride, const void* src, int64_t src_stride, int64_t n, int64_t size) {
  switch (size) {
    case 1: return copy_as<uint8_t>(dst, dst_stride, src, src_stride, n);
    case 2: return copy_as<uint16_t>(dst, dst_stride, src, src_stride, n);
    case 4: return copy_as<uint32_t>(dst, dst_stride, src, src_stride, n);
    case 8: return copy_as<uint64_t>(dst, dst_stride, src, src_stride, n);
    default: return copy_as<Bytes<16>>(dst, dst_stride, src, src_stride, n);
  }
}

Grid<1> positions(const BoundCall& call, const TensorRef& tensor) {
  return grid_over<1>(call, tensor, {strides_of(tensor)});
}

Runs<2> pairs(const BoundCall& call, const TensorRef& from, const TensorRef& to) {
  return Runs<2>(grid_over<2>(call, from, {strides_of(from), strides_of(to)}), 4096);
}

}  // namespace lowtide::reference
