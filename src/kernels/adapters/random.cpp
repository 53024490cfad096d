#include "kernels/cpu/random.h"

#include "kernels/adapters/list.h"
#include "kernels/adapters/strided.h"

namespace lowtide::adapters {

static uint64_t stream_of(const KernelCall& call) { return static_cast<uint64_t>(call.attrs->i("stream")); }

KernelStatus dropout(const KernelCall& call) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  const cpu::DropoutRule rule = cpu::dropout_rule(call.attrs->f("ratio"), call.random_key, stream_of(call));
  cpu::dropout(rule, x.as<float>(), y.as<float>(), y.numel());
  return nullptr;
}

const char* supports_f32_output(const KernelQuery& query) {
  return query.outputs[0].dtype == DType::kF32 ? nullptr : "not f32";
}

KernelStatus random_uniform(const KernelCall& call) {
  const TensorRef& y = call.outputs[0];
  cpu::random_uniform(call.random_key, stream_of(call), static_cast<float>(call.attrs->f("low")),
                      static_cast<float>(call.attrs->f("high")), y.as<float>(), y.numel());
  return nullptr;
}

KernelStatus random_normal(const KernelCall& call) {
  const TensorRef& y = call.outputs[0];
  cpu::random_normal(call.random_key, stream_of(call), static_cast<float>(call.attrs->f("mean")),
                     static_cast<float>(call.attrs->f("scale")), y.as<float>(), y.numel());
  return nullptr;
}

}  // namespace lowtide::adapters
