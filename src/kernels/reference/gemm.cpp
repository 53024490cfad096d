#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"
#include "kernels/walk.h"

namespace lowtide::reference {

namespace {

// The last two dims of an operand, by which of them are its rows and columns.
struct Matrix {
  int64_t rows, cols, row_stride, col_stride;
};

Matrix matrix_of(const TensorRef& tensor, bool transposed) {
  const int r = tensor.rank - 2, c = tensor.rank - 1;
  if (transposed) return {tensor.sizes[c], tensor.sizes[r], tensor.strides[c], tensor.strides[r]};
  return {tensor.sizes[r], tensor.sizes[c], tensor.strides[r], tensor.strides[c]};
}

TensorRef batch_of(TensorRef tensor) {
  tensor.rank -= 2;
  return tensor;
}

}  // namespace

Product::Product(const BoundCall& call) {
  const BoundAttrs& attrs = *call.attrs;
  transpose_a = attrs.b("transA", false);
  transpose_b = attrs.b("transB", false);
  alpha = attrs.f("alpha", 1);
  beta = attrs.f("beta", 0);
  const TensorRef& y = call.outputs[0];
  const Matrix a = matrix_of(call.inputs[0], transpose_a), b = matrix_of(call.inputs[1], transpose_b);
  const TensorRef a_batch = batch_of(call.inputs[0]), b_batch = batch_of(call.inputs[1]);
  outputs = row_major_order<2>(call, batch_of(y), {&a_batch, &b_batch});
  outputs.add_dim(a.rows, {a.row_stride, 0, y.strides[y.rank - 2]});
  rows = a.rows;
  inner = a.cols;
  cols = b.cols;
  a_step = a.col_stride;
  b_step = b.row_stride;
  b_col_step = b.col_stride;
  y_step = y.strides[y.rank - 1];
  const Strides c = broadcast_strides(call, input_or_absent(call, 2), y);
  c_row_step = c.at[0];
  c_step = c.at[1];
}

// y = alpha * a b + beta * c over the batch dims of y; c may be absent, else broadcasts to y.
KernelStatus multiply(const KernelCall& call, const Product& p) {
  const TensorRef &a = call.inputs[0], &b = call.inputs[1], &y = call.outputs[0], *c = input(call, 2);
  const bool integer = !is_float(y.dtype);
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(p.inner * p.cols, 1));
  parallel_for(p.outputs.numel(), grain, [&](int64_t begin, int64_t end) {
    p.outputs.for_each(begin, end, [&](int64_t row, const auto& at) {
      for (int64_t first = 0; first < p.cols; first += kRun) {
        const int64_t n = std::min(kRun, p.cols - first);
        const int64_t b_at = at[1] + first * p.b_col_step, y_at = at[2] + first * p.y_step;
        if (integer) {
          int64_t sums[kRun] = {}, values[kRun];
          for (int64_t k = 0; k < p.inner; ++k) {
            const int64_t left = get_int(a, at[0] + k * p.a_step);
            load(b, b_at + k * p.b_step, p.b_col_step, n, values);
            for (int64_t j = 0; j < n; ++j) sums[j] += left * values[j];
          }
          store(y, y_at, p.y_step, n, sums);
          continue;
        }
        double sums[kRun] = {}, values[kRun];
        for (int64_t k = 0; k < p.inner; ++k) {
          const double left = get(a, at[0] + k * p.a_step);
          load(b, b_at + k * p.b_step, p.b_col_step, n, values);
          for (int64_t j = 0; j < n; ++j) sums[j] += left * values[j];
        }
        if (p.alpha != 1) {
          for (int64_t j = 0; j < n; ++j) sums[j] *= p.alpha;
        }
        if (c && p.beta != 0) {
          load(*c, row % p.rows * p.c_row_step + first * p.c_step, p.c_step, n, values);
          for (int64_t j = 0; j < n; ++j) sums[j] += p.beta * values[j];
        }
        store(y, y_at, p.y_step, n, sums);
      }
    });
  });
  return nullptr;
}

namespace {

constexpr KernelStatus kNoGroups = "the ends of groups fall, or lie outside of the rows";

// body(group, first row, end), or false where the ends are none.
template <class Body>
bool for_each_group(const TensorRef& ends, int64_t rows, Body body) {
  int64_t first = 0;
  for (int64_t group = 0; group < ends.sizes[0]; ++group) {
    const int64_t end = get_int(ends, group * ends.strides[0]);
    if (end < first || end > rows) return false;
    body(group, first, end);
    first = end;
  }
  return true;
}

void fill_with_zeros(const TensorRef& y) {
  for (int64_t i = 0; i < y.numel(); ++i) {
    int64_t at = 0, rest = i;
    for (int dim = y.rank - 1; dim >= 0; --dim) {
      at += rest % y.sizes[dim] * y.strides[dim];
      rest /= y.sizes[dim];
    }
    set(y, at, 0);
  }
}

}  // namespace

KernelStatus grouped_matmul(const KernelCall& call, const Transposition& b_is) {
  const TensorRef &a = call.inputs[0], &b = call.inputs[1], &y = call.outputs[0];
  const int64_t inner_stride = b.strides[b_is.transposed ? 2 : 1], col_stride = b.strides[b_is.transposed ? 1 : 2];
  fill_with_zeros(y);
  const auto multiply = [&](int64_t group, int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row)
      for (int64_t col = 0; col < y.sizes[1]; ++col) {
        double sum = 0;
        for (int64_t k = 0; k < a.sizes[1]; ++k)
          sum += get(a, row * a.strides[0] + k * a.strides[1]) *
                 get(b, group * b.strides[0] + k * inner_stride + col * col_stride);
        set(y, row * y.strides[0] + col * y.strides[1], sum);
      }
  };
  return for_each_group(call.inputs[2], a.sizes[0], multiply) ? nullptr : kNoGroups;
}

KernelStatus grouped_matmul_grad(const KernelCall& call, const Transposition& b_is) {
  const TensorRef &a = call.inputs[0], &dy = call.inputs[1], &db = call.outputs[0];
  const int64_t inner_stride = db.strides[b_is.transposed ? 2 : 1], col_stride = db.strides[b_is.transposed ? 1 : 2];
  const auto multiply = [&](int64_t group, int64_t first, int64_t end) {
    for (int64_t k = 0; k < a.sizes[1]; ++k)
      for (int64_t col = 0; col < dy.sizes[1]; ++col) {
        double sum = 0;
        for (int64_t row = first; row < end; ++row)
          sum += get(a, row * a.strides[0] + k * a.strides[1]) * get(dy, row * dy.strides[0] + col * dy.strides[1]);
        set(db, group * db.strides[0] + k * inner_stride + col * col_stride, sum);
      }
  };
  return for_each_group(call.inputs[2], a.sizes[0], multiply) ? nullptr : kNoGroups;
}

}  // namespace lowtide::reference
