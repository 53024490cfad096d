#include "kernels/cpu/half.h"

#include <array>

#include "kernels/strided.h"

namespace lowtide::cpu {

namespace {

constexpr size_t kMaxOperands = 16;  // inputs and outputs

// The call as the f32 kernel gets it.
struct Operands {
  std::array<TensorRef, kMaxOperands> tensors;
  template <class Call>
  Call call(const Call& original) const {
    const size_t inputs = original.inputs.size();
    Call widened = original;
    widened.inputs = {tensors.data(), inputs};
    widened.outputs = {tensors.data() + inputs, original.outputs.size()};
    return widened;
  }
};

// Where the operand lies in scratch of which `bytes` are taken, itself if it needs none.
int64_t widen(TensorRef& tensor, int64_t& bytes) {
  if (!tensor.present || (!is_half(tensor.dtype) && tensor.is_row_major())) return -1;
  if (is_half(tensor.dtype)) tensor.dtype = DType::kF32;
  int64_t stride = 1;
  for (int i = tensor.rank - 1; i >= 0; --i) {
    tensor.strides[i] = stride;
    stride *= tensor.sizes[i];
  }
  const int64_t offset = bytes;
  bytes += (stride * size_bytes(tensor.dtype) + 63) / 64 * 64;
  return offset;
}

const TensorRef& operand(const KernelCall& call, size_t index) {
  return index < call.inputs.size() ? call.inputs[index] : call.outputs[index - call.inputs.size()];
}

}  // namespace

void prepare_widened(const BoundCall& call, void* state, PrepareFunction f32, size_t f32_state_bytes) {
  int64_t* bytes = new (static_cast<std::byte*>(state) + f32_state_bytes) int64_t(0);
  WidenedOperand* operands = reinterpret_cast<WidenedOperand*>(bytes + 1);
  Operands widened;
  for (size_t i = 0; i < call.inputs.size() + call.outputs.size(); ++i) {
    const TensorRef& given = operand(call, i);
    WidenedOperand& made = *new (operands + i) WidenedOperand{given, -1, {}};
    made.offset = widen(made.tensor, *bytes);
    widened.tensors[i] = made.tensor;
    if (made.offset < 0) continue;
    made.copy = i < call.inputs.size() ? TensorCopy(call, given, made.tensor) : TensorCopy(call, made.tensor, given);
  }
  if (f32 != nullptr) f32(widened.call(call), state);
}

KernelStatus run_widened(const KernelCall& call, KernelFunction f32, size_t f32_state_bytes) {
  const int64_t* bytes = reinterpret_cast<const int64_t*>(static_cast<const std::byte*>(call.state) + f32_state_bytes);
  const WidenedOperand* operands = reinterpret_cast<const WidenedOperand*>(bytes + 1);
  char* scratch = static_cast<char*>(call.scratch);
  const size_t inputs = call.inputs.size(), count = inputs + call.outputs.size();
  Operands widened;
  for (size_t i = 0; i < count; ++i) {
    void* given = operand(call, i).data;
    TensorRef& tensor = widened.tensors[i] = operands[i].tensor;
    tensor.data = operands[i].offset < 0 ? given : scratch + operands[i].offset;
    if (operands[i].offset >= 0 && i < inputs) operands[i].copy.run(given, tensor.data);
  }
  KernelCall wide = widened.call(call);
  wide.scratch = scratch + *bytes;
  wide.scratch_bytes -= *bytes;
  if (const KernelStatus status = f32(wide)) return status;
  for (size_t i = inputs; i < count; ++i) {
    if (operands[i].offset >= 0) operands[i].copy.run(widened.tensors[i].data, operand(call, i).data);
  }
  return nullptr;
}

int64_t widened_scratch(const BoundCall& call, ScratchFunction f32) {
  int64_t bytes = 0;
  Operands widened;
  for (size_t i = 0; i < call.inputs.size() + call.outputs.size(); ++i) {
    widened.tensors[i] = operand(call, i);
    widen(widened.tensors[i], bytes);
  }
  return bytes + (f32 != nullptr ? f32(widened.call(call)) : 0);
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
  if (query.inputs.size() + query.outputs.size() > kMaxOperands) return "too many operands";
  widen(query.inputs, inputs);
  widen(query.outputs, outputs);
  if (!any) return "neither bf16 nor f16";
  return f32({query.op, {inputs.data(), query.inputs.size()}, {outputs.data(), query.outputs.size()}, query.attrs});
}

}  // namespace lowtide::cpu
