// Bytes moved and converted: copies between any strides, casts, parts put together.
#include "kernels/cpu/copy/copy.h"

#include <algorithm>
#include <cstring>

#include "base/half.h"
#include "base/parallel.h"
#include "kernels/cpu/copy/copy_table.h"
#include "kernels/kernel_lines.h"
#include "kernels/rooms.h"
#include "kernels/strided.h"

namespace lowtide::cpu {
namespace {

// ---- one dtype: runs that are contiguous in both are copied whole, transposes go by blocks

constexpr int64_t kGrainBytes = 1 << 18;  // about 30 us of copying

struct BoxDim {
  int64_t size, src, dst;
};

// The box without dims of size 1, outermost destination stride first, dims merged that follow each other in both.
struct Box {
  BoxDim dims[kMaxRank];
  int rank = 0;

  Box(int given, const int64_t* sizes, const int64_t* src, const int64_t* dst) {
    for (int i = 0; i < given; ++i) {
      if (sizes[i] != 1) dims[rank++] = {sizes[i], src[i], dst[i]};
    }
    std::stable_sort(dims, dims + rank, [](const BoxDim& a, const BoxDim& b) { return a.dst > b.dst; });
    int kept = 0;
    for (int i = 1; i < rank; ++i) {
      BoxDim& outer = dims[kept];
      if (outer.src == dims[i].src * dims[i].size && outer.dst == dims[i].dst * dims[i].size) {
        outer = {outer.size * dims[i].size, dims[i].src, dims[i].dst};
      } else {
        dims[++kept] = dims[i];
      }
    }
    if (rank > 0) rank = kept + 1;
  }

  BoxDim take(int at) {
    const BoxDim dim = dims[at];
    std::copy(dims + at + 1, dims + rank--, dims + at);
    return dim;
  }
  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dims[i].size;
    return n;
  }
};

// body(src, dst) for each of the box's places, on all threads; offsets in bytes.
template <class Body>
void for_each_place(const Box& box, int64_t bytes_each, int64_t element, const char* src, char* dst, Body body) {
  parallel_for(box.numel(), std::max<int64_t>(1, kGrainBytes / std::max<int64_t>(1, bytes_each)),
               [&](int64_t begin, int64_t end) {
                 int64_t index[kMaxRank] = {}, from = 0, to = 0, rest = begin;
                 for (int i = box.rank - 1; i >= 0; --i) {
                   index[i] = rest % box.dims[i].size;
                   rest /= box.dims[i].size;
                   from += index[i] * box.dims[i].src;
                   to += index[i] * box.dims[i].dst;
                 }
                 for (int64_t at = begin; at < end; ++at) {
                   body(src + from * element, dst + to * element);
                   for (int i = box.rank - 1; i >= 0; --i) {
                     from += box.dims[i].src;
                     to += box.dims[i].dst;
                     if (++index[i] < box.dims[i].size) break;
                     from -= index[i] * box.dims[i].src;
                     to -= index[i] * box.dims[i].dst;
                     index[i] = 0;
                   }
                 }
               });
}

template <class T>
void copy_run(const BoxDim& run, const char* src, char* dst) {
  const T* x = reinterpret_cast<const T*>(src);
  T* y = reinterpret_cast<T*>(dst);
  if (run.src == 1 && run.dst == 1) {
    std::memcpy(y, x, run.size * sizeof(T));
  } else if (run.src == 0 && run.dst == 1) {
    std::fill(y, y + run.size, *x);
  } else {
    for (int64_t i = 0; i < run.size; ++i) y[i * run.dst] = x[i * run.src];
  }
}

// across is contiguous in src, along in dst.
template <class T>
void transpose_block(const char* src, const BoxDim& along, char* dst, const BoxDim& across) {
  const T* x = reinterpret_cast<const T*>(src);
  T* y = reinterpret_cast<T*>(dst);
  if constexpr (sizeof(T) == 4) {
    copy_table().transpose(reinterpret_cast<const float*>(x), along.src, reinterpret_cast<float*>(y), across.dst,
                           along.size, across.size);
  } else {
    for (int64_t j = 0; j < across.size; ++j) {
      for (int64_t i = 0; i < along.size; ++i) y[j * across.dst + i] = x[i * along.src + j];
    }
  }
}

template <class T>
void copy_box(Box box, const char* src, char* dst) {
  if (box.rank == 0) {
    std::memcpy(dst, src, sizeof(T));
    return;
  }
  BoxDim along = box.take(box.rank - 1);
  const auto contiguous = [](const BoxDim& dim) { return dim.src == 1; };
  const BoxDim* found = std::find_if(box.dims, box.dims + box.rank, contiguous);
  if (along.dst == 1 && along.src > 1 && found != box.dims + box.rank) {
    BoxDim across = box.take(static_cast<int>(found - box.dims));
    // Blocks of 64 x 64: both sides stay in L1. The counts of blocks become dims of the box.
    constexpr int64_t kBlock = 64;
    Box blocks = box;
    const int64_t down = (along.size + kBlock - 1) / kBlock, right = (across.size + kBlock - 1) / kBlock;
    for_each_place(blocks, along.size * across.size * sizeof(T), sizeof(T), src, dst, [&](const char* from, char* to) {
      const auto block = [&](int64_t at) {
        const int64_t i = at % down * kBlock, j = at / down * kBlock;
        const BoxDim block_along{std::min(kBlock, along.size - i), along.src, 1};
        const BoxDim block_across{std::min(kBlock, across.size - j), 1, across.dst};
        transpose_block<T>(from + (i * along.src + j) * sizeof(T), block_along, to + (i + j * across.dst) * sizeof(T),
                           block_across);
      };
      if (box.numel() == 1) {
        parallel_for(down * right, std::max<int64_t>(1, kGrainBytes / (kBlock * kBlock * sizeof(T))),
                     [&](int64_t begin, int64_t end) {
                       for (int64_t at = begin; at < end; ++at) block(at);
                     });
      } else {
        for (int64_t at = 0; at < down * right; ++at) block(at);
      }
    });
    return;
  }
  if (box.rank == 0) {
    // One run: its parts become the places.
    const int64_t part = std::max<int64_t>(1, kGrainBytes / sizeof(T));
    parallel_for(along.size, part, [&](int64_t begin, int64_t end) {
      copy_run<T>({end - begin, along.src, along.dst}, src + begin * along.src * static_cast<int64_t>(sizeof(T)),
                  dst + begin * along.dst * static_cast<int64_t>(sizeof(T)));
    });
    return;
  }
  for_each_place(box, along.size * sizeof(T), sizeof(T), src, dst,
                 [&](const char* from, char* to) { copy_run<T>(along, from, to); });
}

void copy_strided(const TensorRef& from, const TensorRef& to) {
  const Strides strides = broadcast_strides(from, to);
  const Box box(to.rank, to.sizes, strides.at, to.strides);
  switch (size_bytes(to.dtype)) {
    case 1: return copy_box<uint8_t>(box, from.as<char>(), to.as<char>());
    case 2: return copy_box<uint16_t>(box, from.as<char>(), to.as<char>());
    case 4: return copy_box<uint32_t>(box, from.as<char>(), to.as<char>());
    default: return copy_box<uint64_t>(box, from.as<char>(), to.as<char>());
  }
}

// ---- two dtypes

using Loop = void (*)(const void* src, void* dst, int64_t n);

Loop to_f32(DType from) {
  const CopyTable& table = copy_table();
  switch (from) {
    case DType::kBool: return table.bool_to_f32;
    case DType::kI32: return table.i32_to_f32;
    case DType::kI64: return table.i64_to_f32;
    case DType::kBF16: return table.bf16_to_f32;
    case DType::kF16: return table.f16_to_f32;
    case DType::kF64: return table.f64_to_f32;
    default: return nullptr;
  }
}

Loop from_f32(DType to) {
  const CopyTable& table = copy_table();
  switch (to) {
    case DType::kBool: return table.f32_to_bool;
    case DType::kBF16: return table.f32_to_bf16;
    case DType::kF16: return table.f32_to_f16;
    case DType::kF64: return table.f32_to_f64;
    default: return nullptr;
  }
}

// nullptr: no loop of the table converts the pair.
Loop loop_of(DType from, DType to) {
  return to == DType::kF32 ? to_f32(from) : from == DType::kF32 ? from_f32(to) : nullptr;
}

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
  const Loop loop = loop_of(from.dtype, to.dtype);
  const int64_t from_size = size_bytes(from.dtype), to_size = size_bytes(to.dtype);
  for_each_run(memory_order<1>(to, {&from}), kLongestRun, [&](int64_t, const auto& at, const auto& steps, int64_t n) {
    const char* s = from.as<char>() + at[0] * from_size;
    char* t = to.as<char>() + at[1] * to_size;
    if (steps[0] == 1 && steps[1] == 1 && loop != nullptr) {
      loop(s, t, n);
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
  if (from.dtype == to.dtype) return copy_strided(from, to);
  with_common(from.dtype, [&](auto source) {
    with_common(to.dtype, [&](auto target) { convert(from, to, convert_run<decltype(source), decltype(target)>); });
  });
}

namespace {

constexpr OperandRules kCast = every_input(Accept::kAny, {.layout = OutputLayout::kFollowsInput});

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

struct Axis {
  explicit Axis(const BoundCall& call) : axis(call.attrs->i("axis")) {}
  int64_t axis;
};

// Parts of y, one after another along the axis.
KernelStatus concat(const KernelCall& call, const Axis& along) {
  const TensorRef& y = call.outputs[0];
  const int64_t axis = along.axis;
  TensorRef part = y;
  for (const TensorRef& x : call.inputs) {
    part.sizes[axis] = x.sizes[axis];
    copy_tensor(x, part);
    part.data = static_cast<char*>(part.data) + x.sizes[axis] * y.strides[axis] * size_bytes(y.dtype);
  }
  return nullptr;
}

struct SlicePlace {
  explicit SlicePlace(const BoundCall& call)
      : axis(call.attrs->i("axis")), start(call.attrs->i("start")), step(call.attrs->i("step")) {}
  int64_t axis, start, step;
};

KernelStatus slice_scatter(const KernelCall& call, const SlicePlace& place) {
  const TensorRef &base = call.inputs[0], &update = call.inputs[1], &y = call.outputs[0];
  const auto [axis, start, step] = place;
  if (base.data != y.data) copy_tensor(base, y);
  TensorRef part = y;
  part.data = static_cast<char*>(y.data) + start * y.strides[axis] * size_bytes(y.dtype);
  part.sizes[axis] = update.sizes[axis];
  part.strides[axis] *= step;
  copy_tensor(update, part);
  return nullptr;
}

}  // namespace

std::span<const Kernel> copy_kernels() {
  static constexpr Kernel kernels[] = {
#include "kernels/cpu/copy/list.inc"
  };
  return kernels;
}

}  // namespace lowtide::cpu
