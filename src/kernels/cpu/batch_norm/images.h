// What normalisations of images share: images and numbers of channels in f32, bf16 or f16.
#pragma once

#include <algorithm>
#include <utility>

#include "kernels/cpu/batch_norm/batch_norm_table.h"
#include "kernels/cpu/float_runs.h"
#include "kernels/strided.h"

namespace lowtide::cpu {

// Of one number a channel, as floats: where they lie, or in the scratch.
class ChannelVectors {
 public:
  ChannelVectors(const KernelCall& call, int64_t channels, float* room) : call_(call), n_(channels), room_(room) {}
  ~ChannelVectors() {
    for (size_t i = 0; i < results_; ++i) write(*result_[i].to, 0, 1, n_, result_[i].from);
  }
  ChannelVectors(const ChannelVectors&) = delete;

  const float* in(size_t i) {
    const TensorRef* tensor = input(call_, i);
    if (tensor == nullptr) return nullptr;
    return read(*tensor, 0, 1, n_, is_half(tensor->dtype) ? room() : nullptr);
  }
  float* out(size_t i) {
    const TensorRef* tensor = output(call_, i);
    if (tensor == nullptr) return nullptr;
    if (!is_half(tensor->dtype)) return tensor->as<float>();
    float* values = room();
    result_[results_++] = {tensor, values};
    return values;
  }
  float* room() { return std::exchange(room_, room_ + n_); }
  float* end() const { return room_; }  // of those in the scratch so far

  // How many of them the scratch holds.
  static int64_t widened(const BoundCall& call) {
    const auto counts = [](const TensorRef& each) { return each.present && each.rank == 1 && is_half(each.dtype); };
    return std::ranges::count_if(call.inputs, counts) + std::ranges::count_if(call.outputs, counts);
  }

 private:
  struct Result {
    const TensorRef* to;
    const float* from;
  };
  const KernelCall& call_;
  const int64_t n_;
  float* room_;
  Result result_[4] = {};
  size_t results_ = 0;
};

inline const BatchNormLoops& loops(DType stored) {
  const BatchNormTable& table = batch_norm_table();
  return stored == DType::kF32 ? table.f32 : stored == DType::kBF16 ? table.bf16 : table.f16;
}

// Number `offset` of an image whose numbers have that many bytes.
struct Image {
  char* data;
  int64_t bytes;
  explicit Image(const TensorRef& tensor) : data(tensor.as<char>()), bytes(size_bytes(tensor.dtype)) {}
  void* at(int64_t offset) const { return data + offset * bytes; }
};

// Images whose numbers are stored alike; those of a channel in f32 or in half the bytes.
inline const char* supports_images(const KernelQuery& query) {
  const DType stored = query.inputs[0].dtype;
  if (stored != DType::kF32 && !is_half(stored)) return "neither f32, bf16 nor f16";
  const auto fits = [&](const OperandInfo& each) {
    return !each.present || each.dtype == stored ||
           (each.rank == 1 && (each.dtype == DType::kF32 || is_half(each.dtype)));
  };
  return std::ranges::all_of(query.inputs, fits) && std::ranges::all_of(query.outputs, fits) ? nullptr : "mixed dtypes";
}

}  // namespace lowtide::cpu
