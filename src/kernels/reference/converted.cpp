#include "kernels/reference/converted.h"

#include <array>

#include "kernels/reference/elements.h"

namespace lowtide::reference {

namespace {

constexpr size_t kMaxOperands = 16;  // inputs and outputs

const TensorRef& operand(const KernelCall& call, size_t index) {
  return index < call.inputs.size() ? call.inputs[index] : call.outputs[index - call.inputs.size()];
}

struct Operands {
  std::array<TensorRef, kMaxOperands> tensors;
  template <class Call>
  Call call(const Call& original) const {
    const size_t inputs = original.inputs.size();
    Call converted = original;
    converted.inputs = {tensors.data(), inputs};
    converted.outputs = {tensors.data() + inputs, original.outputs.size()};
    return converted;
  }
};

// Where operand i lies in scratch of which `bytes` are taken; -1 if it needs none.
int64_t convert(const BoundCall& call, Op op, size_t i, TensorRef& tensor, int64_t& bytes) {
  tensor = operand(call, i);
  const DType computes = computed_dtype(*call.attrs, tensor.dtype);
  if (!tensor.present || !is_float(tensor.dtype) || tensor.dtype == computes) return -1;
  if (i < call.inputs.size() && is_statistic(op, i)) return -1;
  tensor.dtype = computes;
  int64_t stride = 1;
  for (int dim = tensor.rank - 1; dim >= 0; --dim) {
    tensor.strides[dim] = stride;
    stride *= tensor.sizes[dim];
  }
  const int64_t offset = bytes;
  bytes += (stride * size_bytes(computes) + 63) / 64 * 64;
  return offset;
}

void copy(const TensorRef& from, const TensorRef& to) {
  for (int64_t i = 0, count = to.numel(); i < count; ++i) {
    int64_t source = 0, target = 0, rest = i;
    for (int dim = to.rank - 1; dim >= 0; --dim) {
      source += rest % to.sizes[dim] * from.strides[dim];
      target += rest % to.sizes[dim] * to.strides[dim];
      rest /= to.sizes[dim];
    }
    set(to, target, get(from, source));
  }
}

}  // namespace

void prepare_converted(const BoundCall& call, void* state, const PlainKernel& plain) {
  int64_t* bytes = new (static_cast<std::byte*>(state) + plain.state_bytes) int64_t(0);
  ConvertedOperand* operands = reinterpret_cast<ConvertedOperand*>(bytes + 1);
  Operands converted;
  for (size_t i = 0; i < call.inputs.size() + call.outputs.size(); ++i) {
    ConvertedOperand& made = *new (operands + i) ConvertedOperand;
    made.offset = convert(call, plain.op, i, made.tensor, *bytes);
    converted.tensors[i] = made.tensor;
  }
  if (plain.prepare != nullptr) plain.prepare(converted.call(call), state);
}

KernelStatus run_converted(const KernelCall& call, const PlainKernel& plain) {
  const int64_t* bytes =
      reinterpret_cast<const int64_t*>(static_cast<const std::byte*>(call.state) + plain.state_bytes);
  const ConvertedOperand* operands = reinterpret_cast<const ConvertedOperand*>(bytes + 1);
  char* scratch = static_cast<char*>(call.scratch);
  const size_t inputs = call.inputs.size(), count = inputs + call.outputs.size();
  Operands converted;
  for (size_t i = 0; i < count; ++i) {
    TensorRef& tensor = converted.tensors[i] = operands[i].tensor;
    tensor.data = operands[i].offset < 0 ? operand(call, i).data : scratch + operands[i].offset;
    if (operands[i].offset < 0 || i >= inputs) continue;
    if (operand(call, i).data == nullptr) {
      tensor.data = nullptr;
    } else {
      copy(operand(call, i), tensor);
    }
  }
  KernelCall inner = converted.call(call);
  inner.scratch = scratch + *bytes;
  inner.scratch_bytes -= *bytes;
  if (const KernelStatus status = plain.run(inner)) return status;
  for (size_t i = inputs; i < count; ++i)
    if (operands[i].offset >= 0) copy(converted.tensors[i], operand(call, i));
  return nullptr;
}

int64_t converted_scratch(const BoundCall& call, const PlainKernel& plain) {
  int64_t bytes = 0;
  Operands converted;
  for (size_t i = 0; i < call.inputs.size() + call.outputs.size(); ++i)
    convert(call, plain.op, i, converted.tensors[i], bytes);
  return bytes + (plain.scratch != nullptr ? plain.scratch(converted.call(call)) : 0);
}

}  // namespace lowtide::reference
