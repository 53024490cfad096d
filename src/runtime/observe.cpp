// Executor: what observers are shown, and faults for tests.
#include <utility>

#include "base/half.h"
#include "bind/binding.h"
#include "runtime/block_pool.h"
#include "runtime/executor.h"
#include "runtime/trace.h"

namespace lowtide {

void Executor::observe(std::vector<Probe> probes, Observer observer) {
  probes_ = std::move(probes);
  observer_ = std::move(observer);
  next_probe_ = 0;
}

TensorRef Executor::locate(const RunState& state, int32_t operand) const {
  const ProgramOperand& view = program_.operands[static_cast<size_t>(operand)];
  TensorRef ref = bind_operand(program_, *state.binding_, operand);
  char* const base = state.bases_[static_cast<size_t>(view.buffer)];
  ref.data = base == nullptr ? nullptr
                             : base + state.binding_->values[static_cast<size_t>(view.offset)] * size_bytes(view.dtype);
  return ref;
}

void Executor::show(const RunState& state, int32_t region, int32_t step) {
  // A region begins: the one before it may not have been run to its end.
  if (step == program_.regions[static_cast<size_t>(region)].first)
    for (next_probe_ = 0; next_probe_ < probes_.size() && probes_[next_probe_].region < region;) ++next_probe_;
  for (; next_probe_ < probes_.size(); ++next_probe_) {
    const Probe& probe = probes_[next_probe_];
    if (probe.region != region || probe.step > step) return;
    if (const TensorRef tensor = locate(state, probe.operand); tensor.data != nullptr || tensor.numel() == 0)
      observer_(probe.name, tensor);
  }
}

template <class T>
static void scale(const TensorRef& tensor, double factor) {
  const int64_t numel = tensor.numel();
  for (int64_t i = 0; i < numel; ++i) {
    int64_t rest = i, at = 0;
    for (int32_t d = tensor.rank - 1; d >= 0; --d) {
      at += rest % tensor.sizes[d] * tensor.strides[d];
      rest /= tensor.sizes[d];
    }
    T& element = tensor.as<T>()[at];
    if constexpr (sizeof(T) == 8) {
      element *= factor;
    } else {
      element = T(static_cast<float>(static_cast<double>(static_cast<float>(element)) * factor));
    }
  }
}

void Executor::inject_fault(const RunState& state) const {
  const TensorRef tensor = locate(state, options_.fault.operand);
  if (tensor.data == nullptr) return;
  switch (tensor.dtype) {
    case DType::kF64: return scale<double>(tensor, options_.fault.factor);
    case DType::kF32: return scale<float>(tensor, options_.fault.factor);
    case DType::kF16: return scale<Float16>(tensor, options_.fault.factor);
    case DType::kBF16: return scale<BFloat16>(tensor, options_.fault.factor);
    default: return;
  }
}

}  // namespace lowtide
