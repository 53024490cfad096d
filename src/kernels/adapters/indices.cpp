// Gather along an axis as runs of bytes, and its gradient along the first axis.
#include <cstring>

#include "kernels/adapters/list.h"
#include "kernels/adapters/strided.h"
#include "kernels/cpu/embedding.h"

namespace lowtide::adapters {

namespace {

int64_t size_of(const TensorRef& tensor, int64_t begin, int64_t end) {
  int64_t product = 1;
  for (int64_t i = begin; i < end; ++i) product *= tensor.sizes[i];
  return product;
}

}  // namespace

const char* supports_gather(const KernelQuery& query) {
  return query.inputs[1].dtype == DType::kI64 ? nullptr : "indices are not i64";
}

KernelStatus gather(const KernelCall& call) {
  const TensorRef &data = call.inputs[0], &indices = call.inputs[1], &y = call.outputs[0];
  const int64_t axis = call.attrs->i("axis"), rows = data.sizes[axis], count = indices.numel();
  const int64_t outer = size_of(data, 0, axis);
  const int64_t bytes = size_of(data, axis + 1, data.rank) * size_bytes(data.dtype);
  if (cpu::first_bad_index(indices.as<int64_t>(), count, rows) >= 0) return "Gather: an index is out of range";
  for (int64_t i = 0; i < outer; ++i) {
    cpu::gather_rows(data.as<char>() + i * rows * bytes, rows, bytes, indices.as<int64_t>(), count,
                     y.as<char>() + i * count * bytes);
  }
  return nullptr;
}

const char* supports_gather_grad(const KernelQuery& query) {
  if (query.inputs[0].dtype != DType::kF32) return "not f32";
  if (query.inputs[1].dtype != DType::kI64) return "indices are not i64";
  if (query.attrs->i("axis") != 0) return "not along the first axis";
  return nullptr;
}

int64_t gather_grad_scratch(const KernelCall& call) {
  return cpu::scatter_add_rows_scratch_bytes(call.inputs[1].numel(), call.outputs[0].sizes[0]);
}

KernelStatus gather_grad(const KernelCall& call) {
  const TensorRef &dy = call.inputs[0], &indices = call.inputs[1], &dx = call.outputs[0];
  const int64_t rows = dx.sizes[0], cols = size_of(dx, 1, dx.rank), count = indices.numel();
  if (cpu::first_bad_index(indices.as<int64_t>(), count, rows) >= 0) return "GatherGrad: an index is out of range";
  int64_t skipped = -1;
  if (call.attrs->has("padding_idx")) {
    skipped = call.attrs->i("padding_idx");
    if (skipped < 0) skipped += rows;
  }
  const bool onto = call.inputs.size() > 2 && call.inputs[2].present;
  if (onto && call.inputs[2].data != dx.data) std::memcpy(dx.data, call.inputs[2].data, dx.numel() * sizeof(float));
  cpu::scatter_add_rows(dy.as<float>(), indices.as<int64_t>(), count, dx.as<float>(), rows, cols, skipped, onto,
                        call.scratch);
  return nullptr;
}

}  // namespace lowtide::adapters
