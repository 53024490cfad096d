#include <cstring>

#include "base/half.h"
#include "kernels/adapters/list.h"
#include "kernels/adapters/strided.h"

namespace lowtide::adapters {

namespace {

constexpr int64_t kLongestRun = 4096;
constexpr int64_t kBlock = 32;  // of a transposing copy: both sides of a block stay in the first cache

template <class T>
void copy_run(const T* from, int64_t from_step, T* to, int64_t to_step, int64_t n) {
  if (from_step == 1 && to_step == 1) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(T));
  } else if (from_step == 0 && to_step == 1) {
    std::fill_n(to, n, *from);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i * to_step] = from[i * from_step];
  }
}

// Elements of one size whose values do not matter.
template <class T>
void copy_same(const TensorRef& from, const TensorRef& to) {
  const T* source = from.as<T>();
  T* target = to.as<T>();
  Grid<2> grid = memory_order<1>(to, {&from});
  int fast = -1;  // the dim along which `from` is dense, where `to` is not
  for (int i = 0; i + 1 < grid.rank; ++i) {
    if (grid.strides[i][0] == 1) fast = i;
  }
  const int last = grid.rank - 1;
  if (fast < 0 || grid.strides[last][0] <= 1 || grid.sizes[fast] < 8 || grid.sizes[last] < 8) {
    for_each_run(grid, kLongestRun, [&](int64_t, const auto& at, const auto& steps, int64_t n) {
      copy_run(source + at[0], steps[0], target + at[1], steps[1], n);
    });
    return;
  }
  const int64_t rows = grid.sizes[fast], cols = grid.sizes[last];
  const auto row_step = grid.strides[fast], col_step = grid.strides[last];
  const int64_t row_blocks = (rows + kBlock - 1) / kBlock;
  Grid<2> blocks;
  for (int i = 0; i < last; ++i) {
    if (i != fast) blocks.add_dim(grid.sizes[i], grid.strides[i]);
  }
  parallel_for(blocks.numel() * row_blocks, std::max<int64_t>(1, 16384 / (kBlock * cols)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t task = begin; task < end; ++task) {
                   blocks.for_each(task / row_blocks, task / row_blocks + 1, [&](int64_t, const auto& at) {
                     const int64_t i0 = task % row_blocks * kBlock, i1 = std::min(rows, i0 + kBlock);
                     for (int64_t j0 = 0; j0 < cols; j0 += kBlock) {
                       const int64_t j1 = std::min(cols, j0 + kBlock);
                       for (int64_t i = i0; i < i1; ++i) {
                         const T* s = source + at[0] + i * row_step[0];
                         T* t = target + at[1] + i * row_step[1];
                         for (int64_t j = j0; j < j1; ++j) t[j * col_step[1]] = s[j * col_step[0]];
                       }
                     }
                   });
                 }
               });
}

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

template <class From, class To>
void convert(const TensorRef& from, const TensorRef& to) {
  const From* source = from.as<From>();
  To* target = to.as<To>();
  for_each_run(memory_order<1>(to, {&from}), kLongestRun, [&](int64_t, const auto& at, const auto& steps, int64_t n) {
    const From* s = source + at[0];
    To* t = target + at[1];
    if (steps[0] == 1 && steps[1] == 1) {
      for (int64_t i = 0; i < n; ++i) t[i] = converted<To>(s[i]);
    } else {
      for (int64_t i = 0; i < n; ++i) t[i * steps[1]] = converted<To>(s[i * steps[0]]);
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
  if (from.dtype == to.dtype) {
    switch (size_bytes(to.dtype)) {
      case 1: return copy_same<uint8_t>(from, to);
      case 2: return copy_same<uint16_t>(from, to);
      case 4: return copy_same<uint32_t>(from, to);
      default: return copy_same<uint64_t>(from, to);
    }
  }
  with_common(from.dtype, [&](auto source) {
    with_common(to.dtype, [&](auto target) { convert<decltype(source), decltype(target)>(from, to); });
  });
}

KernelStatus copy(const KernelCall& call) {
  copy_tensor(call.inputs[0], call.outputs[0]);
  return nullptr;
}

// Out-of-range floats are undefined as integers in C++; the reference kernel defines them.
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
