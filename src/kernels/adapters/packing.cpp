#include "kernels/cpu/packing.h"

#include "kernels/adapters/list.h"

namespace lowtide::adapters {

KernelStatus pack_bits(const KernelCall& call) {
  const TensorRef& x = call.inputs[0];
  cpu::pack_bits(x.data, x.numel(), size_bytes(x.dtype), call.attrs->i("bits"), call.attrs->i("low"),
                 call.outputs[0].data);
  return nullptr;
}

KernelStatus unpack_bits(const KernelCall& call) {
  const TensorRef& y = call.outputs[0];
  cpu::unpack_bits(call.inputs[0].data, y.numel(), size_bytes(y.dtype), call.attrs->i("bits"), call.attrs->i("low"),
                   y.data);
  return nullptr;
}

}  // namespace lowtide::adapters
