#include "kernels/cpu/copy/pieces.h"

#include <algorithm>
#include <cstring>

#include "base/half.h"
#include "kernels/cpu/dense.h"

namespace lowtide::cpu {
namespace {

// Box [begin, begin + size) of an operand.
struct Box {
  int64_t begin[kMaxRank] = {}, size[kMaxRank] = {};
  explicit Box(const TensorRef& whole) { std::copy_n(whole.sizes, whole.rank, size); }
  TensorRef of(const TensorRef& whole) const {
    TensorRef part = whole;
    std::copy_n(size, whole.rank, part.sizes);
    return part;
  }
  int64_t offset(const TensorRef& whole) const {
    int64_t at = 0;
    for (int i = 0; i < whole.rank; ++i) at += begin[i] * whole.strides[i];
    return at * size_bytes(whole.dtype);
  }
};

Piece piece(const BoundCall& call, const Box& from, const Box& to) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  return {TensorCopy(call, from.of(x), to.of(y)), from.offset(x), to.offset(y)};
}

// The dims of a copy that repeats by strides of 0.
struct RepeatedDims {
  TensorRef from, to;
  explicit RepeatedDims(DType dtype) {
    from.dtype = to.dtype = dtype;
    from.present = to.present = true;
  }
  void add(int64_t size, int64_t from_stride, int64_t to_stride) {
    from.sizes[from.rank] = to.sizes[to.rank] = size;
    from.strides[from.rank++] = from_stride;
    to.strides[to.rank++] = to_stride;
  }
};

const char* supports_plain(const KernelQuery& query) {
  return query.inputs[0].dtype == query.outputs[0].dtype ? nullptr : "mixed dtypes";
}

}  // namespace

ConstantPad::ConstantPad(const BoundCall& call) : value(call.attrs->f("value", 0)) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  const auto& pads = call.attrs->ints("pads");
  Box from(x), to(y);
  for (int i = 0; i < x.rank; ++i) {
    from.begin[i] = std::max<int64_t>(0, -pads[i]);
    to.begin[i] = std::max<int64_t>(0, pads[i]);
    from.size[i] = to.size[i] = std::max<int64_t>(0, std::min(x.sizes[i] - from.begin[i], y.sizes[i] - to.begin[i]));
  }
  inside = piece(call, from, to);
  TensorRef repeated = y;
  std::fill_n(repeated.strides, y.rank, 0);
  everywhere = TensorCopy(call, repeated, y);
}

const char* supports_pad(const KernelQuery& query) {
  if (query.attrs->s("mode") != "constant") return "not padded with a constant";
  if (is_complex(query.inputs[0].dtype)) return "complex numbers";
  return supports_plain(query);
}

KernelStatus pad(const KernelCall& call, const ConstantPad& padding) {
  const TensorRef& y = call.outputs[0];
  const auto fill = [&](auto value) { padding.everywhere.run(&value, y.data); };
  switch (y.dtype) {
    case DType::kF32: fill(static_cast<float>(padding.value)); break;
    case DType::kF64: fill(padding.value); break;
    case DType::kBF16: fill(BFloat16(static_cast<float>(padding.value))); break;
    case DType::kF16: fill(Float16(static_cast<float>(padding.value))); break;
    case DType::kI64: fill(static_cast<int64_t>(padding.value)); break;
    case DType::kI32: fill(static_cast<int32_t>(padding.value)); break;
    case DType::kI16: fill(static_cast<int16_t>(padding.value)); break;
    case DType::kBool: fill(static_cast<uint8_t>(padding.value != 0)); break;
    default: fill(static_cast<uint8_t>(static_cast<int64_t>(padding.value))); break;
  }
  padding.inside.run(call.inputs[0].data, y.data);
  return nullptr;
}

Rolled::Rolled(const BoundCall& call) {
  const TensorRef& x = call.inputs[0];
  const auto &axes = call.attrs->ints("axes"), &shifts = call.attrs->ints("shifts");
  for (size_t which = 0; which < size_t{1} << axes.size(); ++which) {
    Box from(x), to(x);
    bool empty = x.numel() == 0;
    for (size_t i = 0; i < axes.size(); ++i) {
      const int64_t size = x.sizes[axes[i]];
      const int64_t shift = size == 0 ? 0 : (shifts[i] % size + size) % size;
      const bool wraps = which >> i & 1;  // the last `shift` of x come first in y
      from.begin[axes[i]] = wraps ? size - shift : 0;
      to.begin[axes[i]] = wraps ? 0 : shift;
      from.size[axes[i]] = to.size[axes[i]] = wraps ? shift : size - shift;
      empty |= from.size[axes[i]] == 0;
    }
    if (!empty) pieces[count++] = piece(call, from, to);
  }
}

const char* supports_roll(const KernelQuery& query) {
  std::vector<int64_t> axes = query.attrs->ints("axes");
  if (axes.size() > kMostRolled) return "more than three axes";
  std::ranges::sort(axes);
  return std::ranges::adjacent_find(axes) == axes.end() ? supports_plain(query) : "one axis twice";
}

KernelStatus roll(const KernelCall& call, const Rolled& rolled) {
  for (size_t i = 0; i < rolled.count; ++i) rolled.pieces[i].run(call.inputs[0].data, call.outputs[0].data);
  return nullptr;
}

Mirrored::Mirrored(const BoundCall& call) {
  TensorRef x = call.inputs[0];
  for (int64_t axis : call.attrs->ints("axes")) {
    copy.from += std::max<int64_t>(0, x.sizes[axis] - 1) * x.strides[axis] * size_bytes(x.dtype);
    x.strides[axis] = -x.strides[axis];
  }
  copy.copy = TensorCopy(call, x, call.outputs[0]);
}

KernelStatus flip(const KernelCall& call, const Mirrored& mirrored) {
  mirrored.copy.run(call.inputs[0].data, call.outputs[0].data);
  return nullptr;
}

KeptTriangle::KeptTriangle(const BoundCall& call)
    : lines(product_of_sizes(call.outputs[0], 0, call.outputs[0].rank - 1)),
      rows(call.outputs[0].sizes[call.outputs[0].rank - 2]),
      cols(call.outputs[0].sizes[call.outputs[0].rank - 1]),
      bytes(size_bytes(call.outputs[0].dtype)),
      k(call.attrs->i("k")),
      upper(call.attrs->b("upper")) {}

KernelStatus trilu(const KernelCall& call, const KeptTriangle& kept) {
  const int64_t bytes = kept.bytes, line_bytes = kept.cols * bytes;
  parallel_for(kept.lines, std::max<int64_t>(1, (int64_t{1} << 18) / std::max<int64_t>(1, line_bytes)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t line = begin; line < end; ++line) {
                   const char* from = call.inputs[0].as<char>() + line * line_bytes;
                   char* to = call.outputs[0].as<char>() + line * line_bytes;
                   // Columns before it are on the lower side.
                   const int64_t i = line % kept.rows, side = kept.upper ? i + kept.k : i + kept.k + 1;
                   const int64_t split = std::clamp<int64_t>(side, 0, kept.cols) * bytes;
                   const int64_t first = kept.upper ? split : 0, last = kept.upper ? line_bytes : split;
                   if (from != to) std::memcpy(to + first, from + first, last - first);
                   std::memset(to, 0, first);
                   std::memset(to + last, 0, line_bytes - last);
                 }
               });
  return nullptr;
}

Tiled::Tiled(const BoundCall& call) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  RepeatedDims dims(x.dtype);
  for (int i = 0; i < x.rank; ++i) {
    const int64_t repeats = x.sizes[i] == 0 ? 0 : y.sizes[i] / x.sizes[i];
    if (repeats != 1) dims.add(repeats, 0, y.strides[i] * x.sizes[i]);
    dims.add(x.sizes[i], x.strides[i], y.strides[i]);
  }
  copy = TensorCopy(call, dims.from, dims.to);
}

const char* supports_tile(const KernelQuery& query) {
  return 2 * query.inputs[0].rank <= kMaxRank ? supports_plain(query) : "more than four dims";
}

KernelStatus tile(const KernelCall& call, const Tiled& tiled) {
  tiled.copy.run(call.inputs[0].data, call.outputs[0].data);
  return nullptr;
}

Interleaved::Interleaved(const BoundCall& call) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  const int64_t axis = call.attrs->i("axis"), repeats = call.attrs->i("repeats");
  RepeatedDims dims(x.dtype);
  for (int i = 0; i < x.rank; ++i) {
    dims.add(x.sizes[i], x.strides[i], y.strides[i] * (i == axis ? repeats : 1));
    if (i == axis) dims.add(repeats, 0, y.strides[i]);
  }
  copy = TensorCopy(call, dims.from, dims.to);
}

const char* supports_repeat_interleave(const KernelQuery& query) {
  return query.inputs[0].rank < kMaxRank ? supports_plain(query) : "eight dims";
}

KernelStatus repeat_interleave(const KernelCall& call, const Interleaved& repeated) {
  repeated.copy.run(call.inputs[0].data, call.outputs[0].data);
  return nullptr;
}

}  // namespace lowtide::cpu
