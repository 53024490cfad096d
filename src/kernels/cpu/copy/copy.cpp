// Bytes moved and converted: copies between any strides, casts, parts put together.
#include "kernels/cpu/copy/copy.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/half.h"
#include "base/parallel.h"
#include "kernels/cpu/copy/copy_table.h"
#include "kernels/cpu/copy/folded_pad.h"
#include "kernels/cpu/copy/pieces.h"
#include "kernels/cpu/supports.h"
#include "kernels/kernel_lines.h"
#include "kernels/rooms.h"
#include "kernels/strided.h"

namespace lowtide::cpu {
namespace {

// ---- one dtype: runs that are contiguous in both are copied whole, transposes go by blocks

constexpr int64_t kGrainBytes = 1 << 18;  // about 30 us of copying

// body(src, dst) for each of the copy's places, on all threads.
template <class T, class Body>
void for_each_place(const TensorCopy& copy, int64_t bytes_each, const char* src, char* dst, Body body) {
  constexpr int64_t kSize = sizeof(T);
  parallel_for(copy.places, std::max<int64_t>(1, kGrainBytes / std::max<int64_t>(1, bytes_each)),
               [&](int64_t begin, int64_t end) {
                 copy.runs.rows.for_each(
                     begin, end, [&](int64_t, const auto& at) { body(src + at[0] * kSize, dst + at[1] * kSize); });
               });
}

template <class T>
void copy_run(const CopyDim& run, const char* src, char* dst) {
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
void transpose_block(const char* src, const CopyDim& along, char* dst, const CopyDim& across) {
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
void move_one(const TensorCopy&, const char* src, char* dst) {
  std::memcpy(dst, src, sizeof(T));
}

// One run: its parts go to the threads.
template <class T>
void move_run(const TensorCopy& copy, const char* src, char* dst) {
  const CopyDim along = copy.along;
  const int64_t part = std::max<int64_t>(1, kGrainBytes / sizeof(T));
  parallel_for(along.size, part, [&](int64_t begin, int64_t end) {
    copy_run<T>({end - begin, along.src, along.dst}, src + begin * along.src * static_cast<int64_t>(sizeof(T)),
                dst + begin * along.dst * static_cast<int64_t>(sizeof(T)));
  });
}

template <class T>
void move_runs(const TensorCopy& copy, const char* src, char* dst) {
  for_each_place<T>(copy, copy.along.size * sizeof(T), src, dst,
                    [&](const char* from, char* to) { copy_run<T>(copy.along, from, to); });
}

// Blocks of 64 x 64: both sides stay in L1.
template <class T>
void move_transposed(const TensorCopy& copy, const char* src, char* dst) {
  constexpr int64_t kBlock = 64;
  const CopyDim &along = copy.along, &across = copy.across;
  const int64_t down = (along.size + kBlock - 1) / kBlock, right = (across.size + kBlock - 1) / kBlock;
  for_each_place<T>(copy, along.size * across.size * sizeof(T), src, dst, [&](const char* from, char* to) {
    const auto block = [&](int64_t at) {
      const int64_t i = at % down * kBlock, j = at / down * kBlock;
      const CopyDim block_along{std::min(kBlock, along.size - i), along.src, 1};
      const CopyDim block_across{std::min(kBlock, across.size - j), 1, across.dst};
      transpose_block<T>(from + (i * along.src + j) * sizeof(T), block_along, to + (i + j * across.dst) * sizeof(T),
                         block_across);
    };
    if (copy.places == 1) {
      parallel_for(down * right, std::max<int64_t>(1, kGrainBytes / (kBlock * kBlock * sizeof(T))),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t at = begin; at < end; ++at) block(at);
                   });
    } else {
      for (int64_t at = 0; at < down * right; ++at) block(at);
    }
  });
}

struct Moves {
  TensorCopy::Move one, run, runs, transposed;
};
template <class T>
constexpr Moves kMoves = {move_one<T>, move_run<T>, move_runs<T>, move_transposed<T>};

Moves moves_of(DType dtype) {
  switch (size_bytes(dtype)) {
    case 1: return kMoves<uint8_t>;
    case 2: return kMoves<uint16_t>;
    case 4: return kMoves<uint32_t>;
    case 8: return kMoves<uint64_t>;
    default: return kMoves<std::array<uint64_t, 2>>;
  }
}

// Requires: `runs` holds a run a row.
void plan_move(TensorCopy& copy, const Moves& moves) {
  Grid<2>& rows = copy.runs.rows;
  copy.along = {copy.runs.length, copy.runs.steps[0], copy.runs.steps[1]};
  copy.move = copy.along.size == 1 ? moves.one : rows.rank == 0 ? moves.run : moves.runs;
  for (int i = 0; i < rows.rank; ++i) {
    if (copy.along.dst != 1 || copy.along.src <= 1 || rows.strides[i][0] != 1) continue;
    copy.across = {rows.sizes[i], 1, rows.strides[i][1]};
    rows.remove_dim(i);
    copy.move = moves.transposed;
    break;
  }
  copy.places = rows.numel();
}

// ---- two dtypes

using Loop = TensorCopy::DenseLoop;

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

template <class From, class To>
void convert_run(const void* from, int64_t from_step, void* to, int64_t to_step, int64_t n) {
  const From* s = static_cast<const From*>(from);
  To* t = static_cast<To*>(to);
  for (int64_t i = 0; i < n; ++i) t[i * to_step] = converted<To>(s[i * from_step]);
}

void convert(const TensorCopy& copy, const char* src, char* dst) {
  copy.runs.for_each([&](int64_t, const auto& at, const auto& steps, int64_t n) {
    const char* s = src + at[0] * copy.src_bytes;
    char* t = dst + at[1] * copy.dst_bytes;
    if (steps[0] == 1 && steps[1] == 1 && copy.dense != nullptr) {
      copy.dense(s, t, n);
    } else {
      copy.strided(s, steps[0], t, steps[1], n);
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

TensorCopy::TensorCopy(const BoundCall& call, const TensorRef& from, const TensorRef& to) {
  if (to.numel() == 0) return;
  const Grid<2> grid = memory_order<1>(call, to, {&from});
  if (from.dtype == to.dtype) {
    runs = Runs<2>(grid, to.numel());
    plan_move(*this, moves_of(to.dtype));
    return;
  }
  with_common(from.dtype, [&](auto source) {
    with_common(to.dtype, [&](auto target) { strided = convert_run<decltype(source), decltype(target)>; });
  });
  if (strided == nullptr) return;
  move = convert;
  runs = Runs<2>(grid, kLongestRun);
  dense = loop_of(from.dtype, to.dtype);
  src_bytes = size_bytes(from.dtype);
  dst_bytes = size_bytes(to.dtype);
}

namespace {

constexpr OperandRules kCast = every_input(Accept::kAny, {.layout = OutputLayout::kFollowsInput});

struct InputCopy : TensorCopy {
  explicit InputCopy(const BoundCall& call) : TensorCopy(call, call.inputs[0], call.outputs[0]) {}
};

KernelStatus copy(const KernelCall& call, const InputCopy& all) {
  all.run(call.inputs[0].data, call.outputs[0].data);
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

// An input, and the part of the output that it becomes, one after another along the axis. The output has nothing.
struct Part {
  Part(const BoundCall& call, size_t operand) {
    if (operand >= call.inputs.size()) return;
    const int64_t axis = call.attrs->i("axis");
    TensorRef part = call.outputs[0];
    part.sizes[axis] = call.inputs[operand].sizes[axis];
    copy = TensorCopy(call, call.inputs[operand], part);
    for (size_t i = 0; i < operand; ++i) offset += call.inputs[i].sizes[axis];
    offset *= part.strides[axis] * size_bytes(part.dtype);
  }
  TensorCopy copy;
  int64_t offset = 0;  // bytes
};

KernelStatus concat(const KernelCall& call, std::span<const Part> parts) {
  for (size_t i = 0; i < call.inputs.size(); ++i)
    parts[i].copy.run(call.inputs[i].data, call.outputs[0].as<char>() + parts[i].offset);
  return nullptr;
}

struct SlicePlace {
  explicit SlicePlace(const BoundCall& call) : base(call, call.inputs[0], call.outputs[0]) {
    const int64_t axis = call.attrs->i("axis");
    TensorRef part = call.outputs[0];
    offset = call.attrs->i("start") * part.strides[axis] * size_bytes(part.dtype);
    part.sizes[axis] = call.inputs[1].sizes[axis];
    part.strides[axis] *= call.attrs->i("step");
    update = TensorCopy(call, call.inputs[1], part);
  }
  TensorCopy base, update;
  int64_t offset;  // bytes
};

KernelStatus slice_scatter(const KernelCall& call, const SlicePlace& place) {
  char* to = call.outputs[0].as<char>();
  if (call.inputs[0].data != to) place.base.run(call.inputs[0].data, to);
  place.update.run(call.inputs[1].data, to + place.offset);
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
