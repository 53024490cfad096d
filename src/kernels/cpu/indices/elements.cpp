#include "kernels/cpu/indices/elements.h"

#include <atomic>

#include "base/half.h"
#include "kernels/cpu/block_rows.h"
#include "kernels/cpu/dense.h"
#include "kernels/task_slots.h"

namespace lowtide::cpu {
namespace {

int64_t wrapped(int64_t index, int64_t size) { return index < 0 ? index + size : index; }

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

template <Joining joining, class T>
T joined(T old, T update) {
  // A NaN stays, whichever it is.
  if constexpr (joining == Joining::kAdd) return old + update;
  if constexpr (joining == Joining::kMax) return old > update || old != old ? old : update;
  if constexpr (joining == Joining::kMin) return old < update || old != old ? old : update;
  return update;
}

template <Joining joining, class T>
bool join(const KernelCall& call, const PickedLines& picked) {
  T* y = call.outputs[0].as<T>();
  const T* updates = call.inputs[2].as<const T>();
  return picked.for_all(
      call.inputs[1].as<const int64_t>(), 1.5,
      [&](int64_t place, int64_t from) { y[place] = joined<joining>(y[place], updates[from]); },
      [&](int64_t place, int64_t from, int64_t n) {
        T* to = y + place;
        for (int64_t i = 0; i < n; ++i) to[i] = joined<joining>(to[i], updates[from + i]);
      });
}

template <class T>
bool join(const KernelCall& call, const ScatteredElements& picked) {
  switch (picked.joining) {
    case Joining::kAdd: return join<Joining::kAdd, T>(call, picked);
    case Joining::kMax: return join<Joining::kMax, T>(call, picked);
    case Joining::kMin: return join<Joining::kMin, T>(call, picked);
    default: return true;
  }
}

bool replace(const KernelCall& call, const PickedLines& picked) {
  bool inside = true;
  with_bytes(size_bytes(call.outputs[0].dtype), [&]<class T>(T) { inside = join<Joining::kReplace, T>(call, picked); });
  return inside;
}

// Each line is summed in its own piece of scratch.
template <class T>
bool add_halves(const KernelCall& call, const PickedLines& picked) {
  T* y = call.outputs[0].as<T>();
  const T* updates = call.inputs[2].as<const T>();
  const int64_t* indices = call.inputs[1].as<const int64_t>();
  std::atomic<bool> inside = true;
  constexpr int64_t kLinesOfATask = 16;
  const int64_t tasks = (picked.lines + kLinesOfATask - 1) / kLinesOfATask;
  const bool small = picked.lines * (picked.picks + picked.size) < 20000;
  run_tasks(tasks, picked.size, call.scratch, call.scratch_bytes, small, [&](int64_t task, float* sums) {
    const int64_t end = std::min(picked.lines, (task + 1) * kLinesOfATask);
    for (int64_t number = task * kLinesOfATask; number < end; ++number) {
      const auto [to, at, from] = picked.line(number);
      for (int64_t i = 0; i < picked.size; ++i) sums[i] = y[to + i * picked.along_step];
      for (int64_t i = 0; i < picked.picks; ++i) {
        const int64_t index = wrapped(indices[at + i * picked.indices_step], picked.size);
        if (index >= 0 && index < picked.size)
          sums[index] += updates[from + i * picked.other_step];
        else
          inside = false;
      }
      for (int64_t i = 0; i < picked.size; ++i) y[to + i * picked.along_step] = sums[i];
    }
  });
  return inside;
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
  bool inside = true;
  with_bytes(size_bytes(call.inputs[0].dtype), [&]<class T>(T) {
    const T* data = call.inputs[0].as<const T>();
    T* y = call.outputs[0].as<T>();
    inside = picked.for_all(
        indices, 1, [&](int64_t from, int64_t to) { y[to] = data[from]; },
        [&](int64_t from, int64_t to, int64_t n) { std::copy_n(data + from, n, y + to); });
  });
  return inside ? nullptr : "GatherElements: an index is out of range";
}

static Joining joining_of(const std::string& reduction) {
  if (reduction == "add") return Joining::kAdd;
  if (reduction == "max") return Joining::kMax;
  return reduction == "min" ? Joining::kMin : Joining::kReplace;
}

ScatteredElements::ScatteredElements(const BoundCall& call)
    : PickedLines(call, call.outputs[0], call.inputs[2]),
      base(call, call.inputs[0], call.outputs[0]),
      joining(joining_of(call.attrs->s("reduction"))),
      anew(call.attrs->get_or<bool>("anew", false)) {}

const char* supports_scatter_elements(const KernelQuery& query) {
  const std::string& reduction = query.attrs->s("reduction");
  if (reduction == "mul") return "multiplies";
  const DType dtype = query.inputs[0].dtype;
  const bool joins = dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kI64;
  if (reduction != "none" && !joins && !(reduction == "add" && is_half(dtype))) return "joins another dtype";
  return supports_gather_elements(query);
}

int64_t scatter_elements_scratch(const BoundCall& call) {
  const TensorRef& y = call.outputs[0];
  if (!is_half(y.dtype) || call.attrs->s("reduction") != "add") return 0;
  return y.sizes[call.attrs->i("axis")] * kFloatBytes * parallel_threads();
}

KernelStatus scatter_elements(const KernelCall& call, const ScatteredElements& picked) {
  const TensorRef& y = call.outputs[0];
  if (call.inputs[0].data != y.data) picked.base.run(call.inputs[0].data, y.data);
  if (picked.lines == 0 || picked.picks == 0) return nullptr;
  // An extreme of updates alone begins with any of them.
  bool inside = picked.joining == Joining::kReplace || picked.anew ? replace(call, picked) : true;
  if (y.dtype == DType::kF32)
    inside = inside && join<float>(call, picked);
  else if (y.dtype == DType::kF64)
    inside = inside && join<double>(call, picked);
  else if (y.dtype == DType::kI64)
    inside = inside && join<int64_t>(call, picked);
  else if (picked.joining == Joining::kAdd && y.dtype == DType::kBF16)
    inside = add_halves<BFloat16>(call, picked);
  else if (picked.joining == Joining::kAdd)
    inside = add_halves<Float16>(call, picked);
  return inside ? nullptr : "ScatterElements: an index is out of range";
}

}  // namespace lowtide::cpu
