#include "kernels/cpu/half.h"

#include <array>

#include "kernels/cpu/copy/copy.h"
#include "kernels/strided.h"

namespace lowtide::cpu {

namespace {

constexpr size_t kMaxOperands = 16;

// The call with every half operand replaced by a row-major f32 one at `memory`, and every other one that is not
// row-major by a row-major copy; `bytes` of the memory are used. Call: a KernelCall or a BoundCall.
template <class Call>
struct Widened {
  std::array<TensorRef, kMaxOperands> inputs, outputs;
  Call call;
  int64_t bytes = 0;

  Widened(const Call& original, char* memory) : call(original) {
    std::copy(original.inputs.begin(), original.inputs.end(), inputs.begin());
    std::copy(original.outputs.begin(), original.outputs.end(), outputs.begin());
    for (size_t i = 0; i < original.inputs.size(); ++i) widen(inputs[i], memory);
    for (size_t i = 0; i < original.outputs.size(); ++i) widen(outputs[i], memory);
    call.inputs = {inputs.data(), original.inputs.size()};
    call.outputs = {outputs.data(), original.outputs.size()};
    call.scratch = memory + bytes;
    call.scratch_bytes = original.scratch_bytes - bytes;
  }
  void widen(TensorRef& tensor, char* memory) {
    if (!tensor.present || (!is_half(tensor.dtype) && tensor.is_row_major())) return;
    if (is_half(tensor.dtype)) tensor.dtype = DType::kF32;
    tensor.data = memory + bytes;
    int64_t stride = 1;
    for (int i = tensor.rank - 1; i >= 0; --i) {
      tensor.strides[i] = stride;
      stride *= tensor.sizes[i];
    }
    bytes += (stride * size_bytes(tensor.dtype) + 63) / 64 * 64;
  }
};

}  // namespace

void prepare_widened(const BoundCall& call, void* state, PrepareFunction f32) {
  const Widened widened(call, nullptr);
  f32(widened.call, state);
}

KernelStatus run_widened(const KernelCall& call, KernelFunction f32) {
  const Widened widened(call, static_cast<char*>(call.scratch));
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (widened.inputs[i].data != call.inputs[i].data) copy_tensor(call.inputs[i], widened.inputs[i]);
  }
  if (const KernelStatus status = f32(widened.call)) return status;
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    if (widened.outputs[i].data != call.outputs[i].data) copy_tensor(widened.outputs[i], call.outputs[i]);
  }
  return nullptr;
}

int64_t widened_scratch(const BoundCall& call, ScratchFunction f32) {
  const Widened widened(call, nullptr);
  return widened.bytes + (f32 != nullptr ? f32(widened.call) : 0);
}

// As the f32 kernel sees the query.
const char* supports_widened(const KernelQuery& query, SupportsFunction f32) {
  std::array<OperandInfo, kMaxOperands> inputs, outputs;
  bool any = false;
  auto widen = [&](std::span<const OperandInfo> from, std::array<OperandInfo, kMaxOperands>& to) {
    for (size_t i = 0; i < from.size(); ++i) {
      to[i] = from[i];
      if (!from[i].present || !is_half(from[i].dtype)) continue;
      to[i].dtype = DType::kF32;
      any = true;
    }
  };
  if (query.inputs.size() > kMaxOperands || query.outputs.size() > kMaxOperands) return "too many operands";
  widen(query.inputs, inputs);
  widen(query.outputs, outputs);
  if (!any) return "neither bf16 nor f16";
  return f32({query.op, {inputs.data(), query.inputs.size()}, {outputs.data(), query.outputs.size()}, query.attrs});
}

}  // namespace lowtide::cpu
