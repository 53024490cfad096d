// bf16 and f16 operands of kernels that know f32 alone: widened into scratch, computed, rounded once at the end.
#include <array>

#include "kernels/adapters/list.h"
#include "kernels/adapters/strided.h"

namespace lowtide::adapters {

namespace {

constexpr size_t kMaxOperands = 16;

// The call with every half operand replaced by a row-major f32 one at `memory`, and every other one that is not
// row-major by a row-major copy; `bytes` of the memory are used.
struct Widened {
  std::array<TensorRef, kMaxOperands> inputs, outputs;
  KernelCall call;
  int64_t bytes = 0;

  Widened(const KernelCall& original, char* memory) : call(original) {
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

KernelStatus run(const KernelCall& call, KernelFunction kernel) {
  const Widened widened(call, static_cast<char*>(call.scratch));
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (widened.inputs[i].data != call.inputs[i].data) copy_tensor(call.inputs[i], widened.inputs[i]);
  }
  if (const KernelStatus status = kernel(widened.call)) return status;
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    if (widened.outputs[i].data != call.outputs[i].data) copy_tensor(widened.outputs[i], call.outputs[i]);
  }
  return nullptr;
}

int64_t scratch(const KernelCall& call, int64_t (*inner)(const KernelCall&)) {
  const Widened widened(call, nullptr);
  return widened.bytes + (inner != nullptr ? inner(widened.call) : 0);
}

// As the f32 kernel sees the query.
const char* supports(const KernelQuery& query, const char* (*inner)(const KernelQuery&)) {
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
  return inner({query.op, {inputs.data(), query.inputs.size()}, {outputs.data(), query.outputs.size()}, query.attrs});
}

}  // namespace

#define LT_HALF(op, function, f32_supports, f32_scratch, rules)                                    \
  KernelStatus half_##function(const KernelCall& call) { return run(call, function); }             \
  int64_t half_##function##_scratch(const KernelCall& call) { return scratch(call, f32_scratch); } \
  const char* supports_half_##function(const KernelQuery& query) { return supports(query, f32_supports); }
#include "kernels/adapters/half.inc"

}  // namespace lowtide::adapters
