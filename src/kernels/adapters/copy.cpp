#include "kernels/cpu/copy.h"

#include "base/half.h"
#include "kernels/adapters/list.h"
#include "kernels/adapters/strided.h"

namespace lowtide::adapters {

namespace {

constexpr int64_t kLongestRun = 4096;

struct Truth {
  uint8_t byte;
};

template <class To, class From>
To converted(From value) {
  constexpr bool kHalf = std::is_same_v<From, BFloat16> || std::is_same_v<From, Float16>;
  if constexpr (kHalf) {
    return converted<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<From, Truth>) {
    return converted<To>(value.byte);
  } else if constexpr (std::is_same_v<To, Truth>) {
    return Truth{static_cast<uint8_t>(value != 0)};
  } else if constexpr (std::is_same_v<To, BFloat16> || std::is_same_v<To, Float16>) {
    return To(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

// n elements; steps in elements.
using ConvertRun = void (*)(const void* from, int64_t from_step, void* to, int64_t to_step, int64_t n);

template <class From, class To>
void convert_run(const void* from, int64_t from_step, void* to, int64_t to_step, int64_t n) {
  const From* s = static_cast<const From*>(from);
  To* t = static_cast<To*>(to);
  for (int64_t i = 0; i < n; ++i) t[i * to_step] = converted<To>(s[i * from_step]);
}

void convert(const TensorRef& from, const TensorRef& to, ConvertRun run) {
  const bool known = cpu::can_cast(from.dtype, to.dtype);
  const int64_t from_size = size_bytes(from.dtype), to_size = size_bytes(to.dtype);
  for_each_run(memory_order<1>(to, {&from}), kLongestRun, [&](int64_t, const auto& at, const auto& steps, int64_t n) {
    const char* s = from.as<char>() + at[0] * from_size;
    char* t = to.as<char>() + at[1] * to_size;
    if (steps[0] == 1 && steps[1] == 1 && known) {
      cpu::cast(from.dtype, to.dtype, s, t, n);
    } else {
      run(s, steps[0], t, steps[1], n);
    }
  });
}

// Conversions among these; a Cast of others is the reference's.
template <class Body>
bool with_common(DType dtype, Body body) {
  switch (dtype) {
    case DType::kBool: body(Truth{}); return true;
    case DType::kI32: body(int32_t{}); return true;
    case DType::kI64: body(int64_t{}); return true;
    case DType::kBF16: body(BFloat16()); return true;
    case DType::kF16: body(Float16()); return true;
    case DType::kF32: body(float{}); return true;
    case DType::kF64: body(double{}); return true;
    default: return false;
  }
}

bool is_common(DType dtype) {
  return with_common(dtype, [](auto) {});
}

}  // namespace

void copy_tensor(const TensorRef& from, const TensorRef& to) {
  if (to.numel() == 0) return;
  if (from.dtype == to.dtype) {
    const Strides strides = broadcast_strides(from, to);
    cpu::copy_strided(to.rank, to.sizes, from.data, strides.at, to.data, to.strides, size_bytes(to.dtype));
    return;
  }
  with_common(from.dtype, [&](auto source) {
    with_common(to.dtype, [&](auto target) { convert(from, to, convert_run<decltype(source), decltype(target)>); });
  });
}

KernelStatus copy(const KernelCall& call) {
  copy_tensor(call.inputs[0], call.outputs[0]);
  return nullptr;
}

// Floats out of an integer's range are undefined in C++; the reference kernel defines them.
const char* supports_cast(const KernelQuery& query) {
  const DType from = query.inputs[0].dtype, to = query.outputs[0].dtype;
  if (from == to) return nullptr;
  if (!is_common(from) || !is_common(to)) return "a dtype that is rarely cast";
  if (is_float(from) && is_integer(to)) return "floating point to integer";
  return nullptr;
}

// Parts of y, one after another along the axis.
KernelStatus concat(const KernelCall& call) {
  const TensorRef& y = call.outputs[0];
  const int64_t axis = call.attrs->i("axis");
  TensorRef part = y;
  for (const TensorRef& x : call.inputs) {
    part.sizes[axis] = x.sizes[axis];
    copy_tensor(x, part);
    part.data = static_cast<char*>(part.data) + x.sizes[axis] * y.strides[axis] * size_bytes(y.dtype);
  }
  return nullptr;
}

KernelStatus slice_scatter(const KernelCall& call) {
  const TensorRef &base = call.inputs[0], &update = call.inputs[1], &y = call.outputs[0];
  const int64_t axis = call.attrs->i("axis"), start = call.attrs->i("start"), step = call.attrs->i("step");
  if (base.data != y.data) copy_tensor(base, y);
  TensorRef part = y;
  part.data = static_cast<char*>(y.data) + start * y.strides[axis] * size_bytes(y.dtype);
  part.sizes[axis] = update.sizes[axis];
  part.strides[axis] *= step;
  copy_tensor(update, part);
  return nullptr;
}

}  // namespace lowtide::adapters
