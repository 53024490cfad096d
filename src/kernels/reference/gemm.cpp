#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"
#include "kernels/walk.h"

namespace lowtide::reference {

namespace {

// One operand seen as a batch of matrices [rows, cols].
struct Matrix {
  const TensorRef* tensor;
  int64_t rows, cols, row_stride, col_stride;
};

Matrix matrix_of(const TensorRef& tensor, bool transposed) {
  const int r = tensor.rank - 2, c = tensor.rank - 1;
  if (transposed) return {&tensor, tensor.sizes[c], tensor.sizes[r], tensor.strides[c], tensor.strides[r]};
  return {&tensor, tensor.sizes[r], tensor.sizes[c], tensor.strides[r], tensor.strides[c]};
}

}  // namespace

Product::Product(const BoundCall& call) {
  const BoundAttrs& attrs = *call.attrs;
  transpose_a = attrs.b("transA", false);
  transpose_b = attrs.b("transB", false);
  alpha = attrs.f("alpha", 1);
  beta = attrs.f("beta", 0);
}

// y = alpha * a b + beta * c over the batch dims of y; c may be absent, else broadcasts to y.
KernelStatus multiply(const KernelCall& call, const Product& product) {
  const TensorRef &y = call.outputs[0], *c = input(call, 2);
  const double alpha = product.alpha, beta = product.beta;
  const Matrix a = matrix_of(call.inputs[0], product.transpose_a), b = matrix_of(call.inputs[1], product.transpose_b);
  const int64_t rows = a.rows, inner = a.cols, cols = b.cols;
  const bool integer = !is_float(y.dtype);
  auto batch_strides = [&](const TensorRef& tensor) {
    TensorRef batch = tensor, shape = y;
    batch.rank -= 2;
    shape.rank -= 2;
    return broadcast_strides(batch, shape);
  };
  TensorRef batch = y;
  batch.rank -= 2;
  Grid<3> outputs = grid_over<3>(batch, {batch_strides(*a.tensor), batch_strides(*b.tensor), strides_of(y)});
  outputs.add_dim(rows, {a.row_stride, 0, y.strides[y.rank - 2]});
  const int64_t y_stride = y.strides[y.rank - 1];
  const Strides c_strides = c ? broadcast_strides(*c, y) : Strides();
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(inner * cols, 1));
  parallel_for(outputs.numel(), grain, [&](int64_t begin, int64_t end) {
    outputs.for_each(begin, end, [&](int64_t row, const auto& at) {
      for (int64_t first = 0; first < cols; first += kRun) {
        const int64_t n = std::min(kRun, cols - first);
        if (integer) {
          int64_t sums[kRun] = {}, values[kRun];
          for (int64_t k = 0; k < inner; ++k) {
            const int64_t left = get_int(*a.tensor, at[0] + k * a.col_stride);
            load(*b.tensor, at[1] + k * b.row_stride + first * b.col_stride, b.col_stride, n, values);
            for (int64_t j = 0; j < n; ++j) sums[j] += left * values[j];
          }
          store(y, at[2] + first * y_stride, y_stride, n, sums);
          continue;
        }
        double sums[kRun] = {}, values[kRun];
        for (int64_t k = 0; k < inner; ++k) {
          const double left = get(*a.tensor, at[0] + k * a.col_stride);
          load(*b.tensor, at[1] + k * b.row_stride + first * b.col_stride, b.col_stride, n, values);
          for (int64_t j = 0; j < n; ++j) sums[j] += left * values[j];
        }
        if (alpha != 1) {
          for (int64_t j = 0; j < n; ++j) sums[j] *= alpha;
        }
        if (c && beta != 0) {
          load(*c, row % rows * c_strides.at[0] + first * c_strides.at[1], c_strides.at[1], n, values);
          for (int64_t j = 0; j < n; ++j) sums[j] += beta * values[j];
        }
        store(y, at[2] + first * y_stride, y_stride, n, sums);
      }
    });
  });
  return nullptr;
}

}  // namespace lowtide::reference
