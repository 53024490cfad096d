#include "kernels/cpu/gemm/products.h"

#include <limits>

#include "kernels/cpu/copy/copy.h"
#include "kernels/reference/reference.h"

namespace lowtide::cpu {

Matrix matrix_of(const TensorRef& tensor, bool transposed) {
  const int r = tensor.rank - 2, c = tensor.rank - 1;
  if (transposed) return {tensor.sizes[c], tensor.sizes[r], tensor.strides[c], tensor.strides[r]};
  return {tensor.sizes[r], tensor.sizes[c], tensor.strides[r], tensor.strides[c]};
}

Request request_of(const KernelCall& call) {
  const BoundAttrs& attrs = *call.attrs;
  Request request;
  if (attrs.has("transA")) {
    request.trans_a = attrs.b("transA");
    request.trans_b = attrs.b("transB");
    request.alpha = attrs.f("alpha");
  }
  if (attrs.has("beta")) {
    request.beta = attrs.f("beta");
    request.c = input(call, 2);
    if (request.c == nullptr) request.beta = 0;
  }
  return request;
}

namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int>::max();

bool usable(const TensorRef& tensor) { return !is_half(tensor.dtype) && matrix_of(tensor, false).direct(); }
bool usable_output(const TensorRef& tensor) { return !is_half(tensor.dtype) && matrix_of(tensor, false).plain(); }

Strides batch_strides(const TensorRef& tensor, const TensorRef& y) {
  TensorRef batch = tensor, shape = y;
  batch.rank -= 2;
  shape.rank -= 2;
  return broadcast_strides(batch, shape);
}

Products products_of(const TensorRef& a, bool trans_a, const TensorRef& b, bool trans_b, const TensorRef& y) {
  Products p{a, b, y, matrix_of(a, trans_a), matrix_of(b, trans_b), matrix_of(y, false), {}};
  TensorRef batch = y;
  batch.rank -= 2;
  p.batches = grid_over<3>(batch, {batch_strides(a, y), batch_strides(b, y), strides_of(y)});
  // A batch against one matrix is one tall product where its rows lie evenly.
  Grid<3> tall = p.batches;
  tall.add_dim(p.l.rows, {p.l.row_stride, 0, p.o.row_stride});
  tall.collapse();
  if (tall.rank == 1 && tall.strides[0][1] == 0 && tall.numel() <= kMaxInt) {
    Matrix l = p.l, o = p.o;
    l.rows = o.rows = tall.numel();
    l.row_stride = tall.strides[0][0];
    o.row_stride = tall.strides[0][2];
    if (l.direct() && o.plain()) {
      p.l = l;
      p.o = o;
      p.batches = {};
    }
  }
  p.batches.collapse();
  return p;
}

// A dense f32 (or f64) stand-in for an operand, placed at `memory`, which moves on.
TensorRef dense(const TensorRef& tensor, int64_t& bytes, char* memory) {
  TensorRef result = tensor;
  if (is_half(tensor.dtype)) result.dtype = DType::kF32;
  result.data = memory + bytes;
  int64_t stride = 1;
  for (int i = tensor.rank - 1; i >= 0; --i) {
    result.strides[i] = stride;
    stride *= tensor.sizes[i];
  }
  bytes += (stride * size_bytes(result.dtype) + 63) / 64 * 64;
  return result;
}

}  // namespace

Products products_for(const KernelCall& call, const Request& request, bool fill, int64_t& bytes) {
  char* memory = static_cast<char*>(call.scratch);
  TensorRef operands[2] = {call.inputs[0], call.inputs[1]};
  for (int i = 0; i < 2; ++i) {
    if (usable(operands[i])) continue;
    operands[i] = dense(call.inputs[i], bytes, memory);
    if (fill) copy_tensor(call.inputs[i], operands[i]);
  }
  const TensorRef& y = call.outputs[0];
  return products_of(operands[0], request.trans_a, operands[1], request.trans_b,
                     usable_output(y) ? y : dense(y, bytes, memory));
}

bool nothing_to_multiply(const KernelCall& call, const Request& request) {
  return call.outputs[0].numel() == 0 || matrix_of(call.inputs[0], request.trans_a).cols == 0;
}

KernelStatus reference_of(const KernelCall& call) {
  if (call.attrs->has("beta")) return reference::gemm(call);
  return call.attrs->has("transA") ? reference::fused_matmul(call) : reference::matmul(call);
}

}  // namespace lowtide::cpu
