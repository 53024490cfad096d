#include "kernels/cpu/indices/elements.h"

#include <atomic>

#include "base/half.h"
#include "kernels/cpu/block_rows.h"
#include "kernels/cpu/dense.h"
#include "kernels/task_slots.h"

namespace lowtide::cpu {
namespace {

int64_t wrapped(int64_t index, int64_t size) { return index < 0 ? index + size : index; }

bool all_inside(const PickedLines& picked, const int64_t* indices) {
  std::atomic<bool> good = true;
  for_row_chunks(picked.lines, picked.picks, 0.5, [&](int64_t first, int64_t count) {
    bool inside = true;
    picked.for_each(indices, first, count,
                    [&](int64_t index, int64_t, int64_t) { inside &= index >= -picked.size && index < picked.size; });
    if (!inside) good = false;
  });
  return good;
}

// body(T{}) with an unsigned type of that many bytes.
template <class Body>
void with_bytes(int64_t bytes, Body body) {
  switch (bytes) {
    case 1: return body(uint8_t{});
    case 2: return body(uint16_t{});
    case 4: return body(uint32_t{});
    default: return body(uint64_t{});
  }
}

template <bool adds, class T>
void join(const KernelCall& call, const PickedLines& picked) {
  T* y = call.outputs[0].as<T>();
  const T* updates = call.inputs[2].as<const T>();
  const int64_t* indices = call.inputs[1].as<const int64_t>();
  for_row_chunks(picked.lines, picked.picks, 1.5, [&](int64_t first, int64_t count) {
    picked.for_each(indices, first, count, [&](int64_t index, int64_t to, int64_t from) {
      T& place = y[to + wrapped(index, picked.size) * picked.along_step];
      place = adds ? place + updates[from] : updates[from];
    });
  });
}

// Each line is summed in its own piece of scratch.
template <class T>
void add_halves(const KernelCall& call, const PickedLines& picked) {
  T* y = call.outputs[0].as<T>();
  const T* updates = call.inputs[2].as<const T>();
  const int64_t* indices = call.inputs[1].as<const int64_t>();
  constexpr int64_t kLinesOfATask = 16;
  const int64_t tasks = (picked.lines + kLinesOfATask - 1) / kLinesOfATask;
  const bool small = picked.lines * (picked.picks + picked.size) < 20000;
  run_tasks(tasks, picked.size, call.scratch, call.scratch_bytes, small, [&](int64_t task, float* sums) {
    const int64_t end = std::min(picked.lines, (task + 1) * kLinesOfATask);
    for (int64_t number = task * kLinesOfATask; number < end; ++number) {
      const auto [to, at, from] = picked.line(number);
      for (int64_t i = 0; i < picked.size; ++i) sums[i] = y[to + i * picked.along_step];
      for (int64_t i = 0; i < picked.picks; ++i)
        sums[wrapped(indices[at + i * picked.indices_step], picked.size)] += updates[from + i * picked.other_step];
      for (int64_t i = 0; i < picked.size; ++i) y[to + i * picked.along_step] = sums[i];
    }
  });
}

}  // namespace

PickedLines::PickedLines(const BoundCall& call, const TensorRef& along, const TensorRef& other) {
  const TensorRef& indices = call.inputs[1];
  const int64_t axis = call.attrs->i("axis");
  picks = indices.sizes[axis];
  size = along.sizes[axis];
  along_step = along.strides[axis];
  indices_step = indices.strides[axis];
  other_step = other.strides[axis];
  for (int dim = 0; dim < indices.rank; ++dim) {
    if (dim == axis) continue;
    lines *= indices.sizes[dim];
    dims_[rank_++] = {indices.sizes[dim], along.strides[dim], indices.strides[dim], other.strides[dim]};
  }
}

PickedLines::Line PickedLines::line(int64_t number) const {
  Line at{};
  for (int dim = rank_ - 1; dim >= 0; --dim) {
    const Dim& each = dims_[dim];
    const int64_t i = number % each.size;
    number /= each.size;
    at.along += i * each.along;
    at.indices += i * each.indices;
    at.other += i * each.other;
  }
  return at;
}

const char* supports_gather_elements(const KernelQuery& query) {
  if (query.inputs[1].dtype != DType::kI64) return "indices are not i64";
  return query.inputs[1].rank > 0 ? nullptr : "no axis";
}

KernelStatus gather_elements(const KernelCall& call, const GatheredElements& picked) {
  const int64_t* indices = call.inputs[1].as<const int64_t>();
  if (!all_inside(picked, indices)) return "GatherElements: an index is out of range";
  with_bytes(size_bytes(call.inputs[0].dtype), [&]<class T>(T) {
    const T* data = call.inputs[0].as<const T>();
    T* y = call.outputs[0].as<T>();
    for_row_chunks(picked.lines, picked.picks, 1, [&](int64_t first, int64_t count) {
      picked.for_each(indices, first, count, [&](int64_t index, int64_t from, int64_t to) {
        y[to] = data[from + wrapped(index, picked.size) * picked.along_step];
      });
    });
  });
  return nullptr;
}

ScatteredElements::ScatteredElements(const BoundCall& call)
    : PickedLines(call, call.outputs[0], call.inputs[2]),
      base(call, call.inputs[0], call.outputs[0]),
      adds(call.attrs->s("reduction") == "add") {}

const char* supports_scatter_elements(const KernelQuery& query) {
  const std::string& reduction = query.attrs->s("reduction");
  if (reduction != "add" && reduction != "none") return "neither replaces nor adds";
  const DType dtype = query.inputs[0].dtype;
  const bool sums = dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kI64 || is_half(dtype);
  if (reduction == "add" && !sums) return "sums of another dtype";
  return supports_gather_elements(query);
}

int64_t scatter_elements_scratch(const BoundCall& call) {
  const TensorRef& y = call.outputs[0];
  if (!is_half(y.dtype) || call.attrs->s("reduction") != "add") return 0;
  return y.sizes[call.attrs->i("axis")] * kFloatBytes * parallel_threads();
}

KernelStatus scatter_elements(const KernelCall& call, const ScatteredElements& picked) {
  const TensorRef& y = call.outputs[0];
  if (!all_inside(picked, call.inputs[1].as<const int64_t>())) return "ScatterElements: an index is out of range";
  if (call.inputs[0].data != y.data) picked.base.run(call.inputs[0].data, y.data);
  if (picked.lines == 0 || picked.picks == 0) return nullptr;
  if (!picked.adds)
    with_bytes(size_bytes(y.dtype), [&]<class T>(T) { join<false, T>(call, picked); });
  else if (y.dtype == DType::kF32)
    join<true, float>(call, picked);
  else if (y.dtype == DType::kF64)
    join<true, double>(call, picked);
  else if (y.dtype == DType::kI64)
    join<true, int64_t>(call, picked);
  else if (y.dtype == DType::kBF16)
    add_halves<BFloat16>(call, picked);
  else
    add_halves<Float16>(call, picked);
  return nullptr;
}

}  // namespace lowtide::cpu
