#include "kernels/cpu/indices/slices.h"

#include <atomic>
#include <cstring>

#include "kernels/cpu/block_rows.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/float_runs.h"

namespace lowtide::cpu {
namespace {

bool all_inside(const PickedSlices& slices, const int64_t* indices) {
  std::atomic<bool> good = true;
  for_row_chunks(slices.tuples, slices.depth, 1, [&](int64_t first, int64_t count) {
    bool inside = true;
    for (int64_t number = first; number < first + count; ++number) inside &= slices.offset(indices, number) >= 0;
    if (!inside) good = false;
  });
  return good;
}

// body(first, count) for panels of a slice's numbers, on all threads: `work` numbers of each are touched.
template <class Body>
void for_panels(int64_t inner, int64_t work, Body body) {
  constexpr int64_t kPanel = 64;
  const int64_t panels = (inner + kPanel - 1) / kPanel;
  for_row_chunks(panels, kPanel * work, 0.3, [&](int64_t first, int64_t count) {
    const int64_t begin = first * kPanel;
    body(begin, std::min(inner, (first + count) * kPanel) - begin);
  });
}

// Slices of one number each, of which threads have nothing to share.
void add_numbers(float* sums, const float* updates, const int64_t* indices, const PickedSlices& slices) {
  for (int64_t number = 0; number < slices.tuples; ++number) sums[slices.offset(indices, number)] += updates[number];
}

void add_to(float* sums, const KernelCall& call, const PickedSlices& slices) {
  const TensorRef& updates = call.inputs[2];
  const int64_t* indices = call.inputs[1].as<const int64_t>();
  if (slices.inner == 1 && updates.dtype == DType::kF32) return add_numbers(sums, updates.as<float>(), indices, slices);
  for_panels(slices.inner, slices.tuples, [&](int64_t first, int64_t width) {
    for (int64_t number = 0; number < slices.tuples; ++number) {
      float* to = sums + slices.offset(indices, number) + first;
      for (int64_t at = 0; at < width; at += kRun) {
        float buffer[kRun];
        const int64_t n = std::min(kRun, width - at);
        const float* from = read(updates, number * slices.inner + first + at, 1, n, buffer);
        for (int64_t i = 0; i < n; ++i) to[at + i] += from[i];
      }
    }
  });
}

const char* supports_tuples(const KernelQuery& query) {
  return query.inputs[1].dtype == DType::kI64 ? nullptr : "indices are not i64";
}

}  // namespace

PickedSlices::PickedSlices(const TensorRef& data, const TensorRef& indices)
    : depth(indices.sizes[indices.rank - 1]), inner(product_of_sizes(data, static_cast<int>(depth), data.rank)) {
  tuples = product_of_sizes(indices, 0, indices.rank - 1);
  int64_t stride = inner;
  for (int64_t k = depth - 1; k >= 0; --k) {
    sizes_[k] = data.sizes[k];
    strides_[k] = stride;
    stride *= data.sizes[k];
  }
}

int64_t PickedSlices::offset(const int64_t* indices, int64_t number) const {
  int64_t result = 0;
  for (int64_t k = 0; k < depth; ++k) {
    int64_t index = indices[number * depth + k];
    index += index < 0 ? sizes_[k] : 0;
    if (index < 0 || index >= sizes_[k]) return -1;
    result += index * strides_[k];
  }
  return result;
}

const char* supports_gather_nd(const KernelQuery& query) { return supports_tuples(query); }

KernelStatus gather_nd(const KernelCall& call, const GatheredSlices& slices) {
  const int64_t* indices = call.inputs[1].as<const int64_t>();
  if (!all_inside(slices, indices)) return "GatherND: an index is out of range";
  const int64_t bytes = size_bytes(call.inputs[0].dtype), each = slices.inner * bytes;
  const char* from = call.inputs[0].as<const char>();
  char* to = call.outputs[0].as<char>();
  for_row_chunks(slices.tuples, each, 0.05, [&](int64_t first, int64_t count) {
    if (each == kFloatBytes) {
      for (int64_t number = first; number < first + count; ++number)
        std::memcpy(to + number * kFloatBytes, from + slices.offset(indices, number) * bytes, kFloatBytes);
      return;
    }
    for (int64_t number = first; number < first + count; ++number)
      std::memcpy(to + number * each, from + slices.offset(indices, number) * bytes, each);
  });
  return nullptr;
}

ScatteredSlices::ScatteredSlices(const BoundCall& call)
    : PickedSlices(call.outputs[0], call.inputs[1]), adds(call.attrs->s("reduction") == "add") {}

const char* supports_scatter_nd(const KernelQuery& query) {
  const std::string& reduction = query.attrs->s("reduction");
  if (reduction != "add" && reduction != "none") return "neither replaces nor adds";
  const DType dtype = query.inputs[0].dtype;
  if (reduction == "add" && dtype != DType::kF32 && !is_half(dtype)) return "sums of another dtype";
  return supports_tuples(query);
}

int64_t scatter_nd_scratch(const BoundCall& call) {
  const TensorRef& y = call.outputs[0];
  return is_half(y.dtype) && call.attrs->s("reduction") == "add" ? y.numel() * kFloatBytes : 0;
}

KernelStatus scatter_nd(const KernelCall& call, const ScatteredSlices& slices) {
  const TensorRef &data = call.inputs[0], &y = call.outputs[0];
  const int64_t* indices = call.inputs[1].as<const int64_t>();
  if (!all_inside(slices, indices)) return "ScatterND: an index is out of range";
  const int64_t bytes = size_bytes(y.dtype), numel = y.numel();
  if (slices.adds && is_half(y.dtype)) {
    float* sums = static_cast<float*>(call.scratch);
    for_row_chunks(numel, 1, 0.2, [&](int64_t first, int64_t count) { read(data, first, 1, count, sums + first); });
    add_to(sums, call, slices);
    for_row_chunks(numel, 1, 0.2, [&](int64_t first, int64_t count) { write(y, first, 1, count, sums + first); });
    return nullptr;
  }
  if (data.data != y.data) {
    for_row_chunks(numel * bytes, 1, 0.05, [&](int64_t first, int64_t count) {
      std::memcpy(y.as<char>() + first, data.as<const char>() + first, count);
    });
  }
  if (slices.adds) {
    add_to(y.as<float>(), call, slices);
    return nullptr;
  }
  const char* from = call.inputs[2].as<const char>();
  for_panels(slices.inner, slices.tuples, [&](int64_t first, int64_t width) {
    for (int64_t number = 0; number < slices.tuples; ++number)
      std::memcpy(y.as<char>() + (slices.offset(indices, number) + first) * bytes,
                  from + (number * slices.inner + first) * bytes, width * bytes);
  });
  return nullptr;
}

}  // namespace lowtide::cpu
