#include "kernels/cpu/gemm/products.h"

#include <limits>

namespace lowtide::cpu {

namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int>::max();

Matrix matrix_of(const TensorRef& tensor, bool transposed) {
  const int r = tensor.rank - 2, c = tensor.rank - 1;
  if (transposed) return {tensor.sizes[c], tensor.sizes[r], tensor.strides[c], tensor.strides[r]};
  return {tensor.sizes[r], tensor.sizes[c], tensor.strides[r], tensor.strides[c]};
}

Strides batch_strides(const BoundCall& call, const TensorRef& tensor, const TensorRef& y) {
  TensorRef batch = tensor, shape = y;
  batch.rank -= 2;
  shape.rank -= 2;
  return broadcast_strides(call, batch, shape);
}

// A dense tensor of the same sizes, without data.
TensorRef dense(const TensorRef& tensor) {
  TensorRef result = tensor;
  int64_t stride = 1;
  for (int i = tensor.rank - 1; i >= 0; --i) {
    result.strides[i] = stride;
    stride *= tensor.sizes[i];
  }
  return result;
}

}  // namespace

Products::Products(const BoundCall& call) : asked(call) {
  alpha = asked.alpha;
  beta = input(call, 2) == nullptr ? 0 : asked.beta;
  TensorRef a = call.inputs[0], b = call.inputs[1], y = call.outputs[0];
  is_empty = y.numel() == 0 || matrix_of(a, asked.transpose_a).cols == 0;
  is_double = y.dtype == DType::kF64;
  auto stand_in = [&](TensorRef& tensor, int which) {
    const TensorRef given = tensor;
    tensor = dense(tensor);
    copies[which] = which == 2 ? TensorCopy(call, tensor, given) : TensorCopy(call, given, tensor);
    stand_ins[which] = bytes;
    bytes += (tensor.numel() * size_bytes(tensor.dtype) + 63) / 64 * 64;
  };
  if (!matrix_of(a, false).direct()) stand_in(a, 0);
  if (!matrix_of(b, false).direct()) stand_in(b, 1);
  if (!matrix_of(y, false).plain()) stand_in(y, 2);
  if (beta != 0) copy_addend = TensorCopy(call, call.inputs[2], y);
  l = matrix_of(a, asked.transpose_a);
  r = matrix_of(b, asked.transpose_b);
  o = matrix_of(y, false);
  TensorRef batch = y;
  batch.rank -= 2;
  batches = grid_over<3>(call, batch, {batch_strides(call, a, y), batch_strides(call, b, y), strides_of(y)});
  // A batch against one matrix is one tall product where its rows lie evenly.
  Grid<3> tall = batches;
  tall.add_dim(l.rows, {l.row_stride, 0, o.row_stride});
  tall.collapse();
  if (tall.rank == 1 && tall.strides[0][1] == 0 && tall.numel() <= kMaxInt) {
    Matrix tall_l = l, tall_o = o;
    tall_l.rows = tall_o.rows = tall.numel();
    tall_l.row_stride = tall.strides[0][0];
    tall_o.row_stride = tall.strides[0][2];
    if (tall_l.direct() && tall_o.plain()) {
      l = tall_l;
      o = tall_o;
      batches = {};
    }
  }
  batches.collapse();
}

ProductOperands operands_of(const KernelCall& call, const Products& products) {
  auto find = [&](const TensorRef& tensor, int which) -> void* {
    if (products.stand_ins[which] < 0) return tensor.data;
    char* found = static_cast<char*>(call.scratch) + products.stand_ins[which];
    if (which < 2) products.copies[which].run(tensor.data, found);
    return found;
  };
  return {find(call.inputs[0], 0), find(call.inputs[1], 1), find(call.outputs[0], 2)};
}

void hand_back(const KernelCall& call, const Products& products, const ProductOperands& operands) {
  products.copies[2].run(operands.y, call.outputs[0].data);
}

}  // namespace lowtide::cpu
