// Kernels of AttentionGrad know three outputs: where `packed` puts dq, dk and dv into one, they get its parts.
#pragma once

#include <array>
#include <cstring>

#include "kernels/prepared.h"

namespace lowtide {

// The outputs that a call's kernel works on.
class UnpackedHeads {
 public:
  // `axis`: 0 where they are what the call has.
  UnpackedHeads(const KernelCall& call, int64_t axis) : outputs_(call.outputs) {
    if (axis == 0) return;
    const TensorRef& packed = call.outputs[0];
    const int heads = axis == 2 ? 3 : 2;
    for (int i = 0; i < 3; ++i) {
      TensorRef& part = unpacked_[static_cast<size_t>(i)];
      part = packed;
      part.rank = 4;
      const int from[4] = {0, heads, 1, 4};
      for (int d = 0; d < 4; ++d) {
        part.sizes[d] = packed.sizes[from[d]];
        part.strides[d] = packed.strides[from[d]];
      }
      if (packed.data != nullptr) part.data = packed.as<char>() + i * packed.strides[axis] * size_bytes(packed.dtype);
    }
    if (call.outputs.size() > 3) unpacked_[3] = call.outputs[3];
    outputs_ = unpacked_;
  }
  UnpackedHeads(const UnpackedHeads&) = delete;
  std::span<const TensorRef> outputs() const { return outputs_; }

 private:
  std::array<TensorRef, 4> unpacked_;
  std::span<const TensorRef> outputs_;
};

// Fields of the Kernel that serves both forms through the functions given, whose state is followed by the axis.
template <class Of>
struct Unpacking {
  static_assert(Of::kStateBytesEach == 0 && Of::kPrepare != nullptr);
  static constexpr size_t kOwnBytes = (Of::kStateBytes + kStateAlignment - 1) / kStateAlignment * kStateAlignment;
  static void prepare(const BoundCall& call, void* state) {
    const int64_t axis = call.attrs->i("packed", 0);
    std::memcpy(static_cast<char*>(state) + kOwnBytes, &axis, sizeof axis);
    const UnpackedHeads heads(call, axis);
    BoundCall unpacked = call;
    unpacked.outputs = heads.outputs();
    Of::kPrepare(unpacked, state);
  }
  static KernelStatus run(const KernelCall& call) {
    int64_t axis = 0;
    std::memcpy(&axis, static_cast<const char*>(call.state) + kOwnBytes, sizeof axis);
    const UnpackedHeads heads(call, axis);
    KernelCall unpacked = call;
    unpacked.outputs = heads.outputs();
    return Of::kRun(unpacked);
  }
  static constexpr KernelFunction kRun = run;
  static constexpr PrepareFunction kPrepare = prepare;
  static constexpr size_t kStateBytes = kOwnBytes + sizeof(int64_t), kStateBytesEach = 0;
};
template <ScratchFunction of>
int64_t unpacking_scratch(const BoundCall& call) {
  const UnpackedHeads heads(call, call.attrs->i("packed", 0));
  BoundCall unpacked = call;
  unpacked.outputs = heads.outputs();
  return of(unpacked);
}

}  // namespace lowtide
