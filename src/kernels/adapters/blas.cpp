// Matrix multiply by the BLAS that the process has loaded (base/libraries.h). Row-major products as column-major ones
// with swapped operands; transposes and leading strides go in as flags, other layouts and bf16/f16 through scratch.
#include <algorithm>
#include <limits>

#include "base/libraries.h"
#include "kernels/adapters/list.h"
#include "kernels/adapters/strided.h"
#include "kernels/reference/reference.h"

namespace lowtide::adapters {

namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int>::max();
// Products below this many multiplications run one a thread, larger ones on all threads one after another.
constexpr int64_t kSmallProduct = int64_t{1} << 22;

// The last two dims of an operand as BLAS takes them: op 'N' is row-major with leading stride `lead`.
struct Matrix {
  int64_t rows, cols, row_stride, col_stride;

  bool plain() const {
    return (col_stride == 1 || cols == 1) && (row_stride >= std::max<int64_t>(cols, 1) || rows == 1);
  }
  bool flipped() const {
    return (row_stride == 1 || rows == 1) && (col_stride >= std::max<int64_t>(rows, 1) || cols == 1);
  }
  bool direct() const { return plain() || flipped(); }
  char op() const { return plain() ? 'N' : 'T'; }
  int lead() const {
    const int64_t stride = plain() ? row_stride : col_stride, least = plain() ? cols : rows,
                  other = plain() ? rows : cols;
    return static_cast<int>(std::max<int64_t>(other == 1 ? least : stride, 1));
  }
};

Matrix matrix_of(const TensorRef& tensor, bool transposed) {
  const int r = tensor.rank - 2, c = tensor.rank - 1;
  if (transposed) return {tensor.sizes[c], tensor.sizes[r], tensor.strides[c], tensor.strides[r]};
  return {tensor.sizes[r], tensor.sizes[c], tensor.strides[r], tensor.strides[c]};
}

bool is_half(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

bool usable(const TensorRef& tensor) { return !is_half(tensor.dtype) && matrix_of(tensor, false).direct(); }
bool usable_output(const TensorRef& tensor) { return !is_half(tensor.dtype) && matrix_of(tensor, false).plain(); }

// A dense f32 (or f64) stand-in for an operand, placed at `memory`, which moves on.
TensorRef dense(const TensorRef& tensor, char*& memory) {
  TensorRef result = tensor;
  if (is_half(tensor.dtype)) result.dtype = DType::kF32;
  result.data = memory;
  int64_t stride = 1;
  for (int i = tensor.rank - 1; i >= 0; --i) {
    result.strides[i] = stride;
    stride *= tensor.sizes[i];
  }
  memory += (stride * size_bytes(result.dtype) + 63) / 64 * 64;
  return result;
}

template <class T>
BlasGemm<T> library_gemm() {
  if constexpr (std::is_same_v<T, float>) {
    return libraries().sgemm;
  } else {
    return libraries().dgemm;
  }
}

Strides batch_strides(const TensorRef& tensor, const TensorRef& y) {
  TensorRef batch = tensor, shape = y;
  batch.rank -= 2;
  shape.rank -= 2;
  return broadcast_strides(batch, shape);
}

// y = alpha op(a) op(b) + beta y; all of T, a and b direct, y plain.
template <class T>
void multiply(const TensorRef& a, bool trans_a, const TensorRef& b, bool trans_b, const TensorRef& y, T alpha, T beta) {
  const Matrix left = matrix_of(a, trans_a), right = matrix_of(b, trans_b), out = matrix_of(y, false);
  TensorRef batch = y;
  batch.rank -= 2;
  Grid<3> grid = grid_over<3>(batch, {batch_strides(a, y), batch_strides(b, y), strides_of(y)});
  const BlasGemm<T> gemm = library_gemm<T>();
  auto product = [&](int64_t rows, const Matrix& l, const Matrix& o, const auto& at) {
    const int m = static_cast<int>(rows), n = static_cast<int>(out.cols), k = static_cast<int>(left.cols);
    const char left_op = l.op(), right_op = right.op();
    const int left_lead = l.lead(), right_lead = right.lead(), out_lead = o.lead();
    gemm(&right_op, &left_op, &n, &m, &k, &alpha, b.as<T>() + at[1], &right_lead, a.as<T>() + at[0], &left_lead, &beta,
         y.as<T>() + at[2], &out_lead);
  };
  // A batch against one matrix is one tall product where its rows lie evenly.
  Grid<3> tall = grid;
  tall.add_dim(left.rows, {left.row_stride, 0, out.row_stride});
  tall.collapse();
  if (tall.rank <= 1 && tall.numel() <= kMaxInt && left.rows > 0) {
    const int64_t rows = tall.numel();
    Matrix l = left, o = out;
    l.rows = o.rows = rows;
    if (tall.rank == 1) {
      l.row_stride = tall.strides[0][0];
      o.row_stride = tall.strides[0][2];
    }
    const bool one_right = tall.rank == 0 || tall.strides[0][1] == 0;
    if (one_right && l.direct() && o.plain()) return product(rows, l, o, std::array<int64_t, 3>{});
  }
  grid.collapse();
  const int64_t batches = grid.numel();
  const bool small = left.rows * left.cols * right.cols < kSmallProduct && batches > 1;
  if (small) {
    parallel_for(batches, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, left.rows * left.cols * right.cols)),
                 [&](int64_t begin, int64_t end) {
                   grid.for_each(begin, end, [&](int64_t, const auto& at) { product(left.rows, left, out, at); });
                 });
  } else {
    grid.for_each([&](int64_t, const auto& at) { product(left.rows, left, out, at); });
  }
}

struct Product {
  bool trans_a = false, trans_b = false;
  double alpha = 1, beta = 0;
  const TensorRef* c = nullptr;
  KernelFunction fallback;
};

KernelStatus run(const KernelCall& call, const Product& product) {
  TensorRef a = call.inputs[0], b = call.inputs[1], y = call.outputs[0];
  for (const TensorRef* tensor : {&a, &b, &y}) {
    if (tensor->sizes[tensor->rank - 1] > kMaxInt || tensor->sizes[tensor->rank - 2] > kMaxInt)
      return product.fallback(call);
  }
  if (y.numel() == 0) return nullptr;
  if (matrix_of(a, product.trans_a).cols == 0) return product.fallback(call);
  char* memory = static_cast<char*>(call.scratch);
  for (TensorRef* operand : {&a, &b}) {
    if (usable(*operand)) continue;
    const TensorRef original = *operand;
    *operand = dense(original, memory);
    copy_tensor(original, *operand);
  }
  if (!usable_output(y)) y = dense(y, memory);
  const double beta = product.c != nullptr ? product.beta : 0;
  if (beta != 0) copy_tensor(*product.c, y);
  if (y.dtype == DType::kF64) {
    multiply<double>(a, product.trans_a, b, product.trans_b, y, product.alpha, beta);
  } else {
    multiply<float>(a, product.trans_a, b, product.trans_b, y, static_cast<float>(product.alpha),
                    static_cast<float>(beta));
  }
  if (y.data != call.outputs[0].data) copy_tensor(y, call.outputs[0]);
  return nullptr;
}

}  // namespace

KernelStatus blas_matmul(const KernelCall& call) { return run(call, {.fallback = reference::matmul}); }

KernelStatus blas_fused_matmul(const KernelCall& call) {
  return run(call, {.trans_a = call.attrs->b("transA"),
                    .trans_b = call.attrs->b("transB"),
                    .alpha = call.attrs->f("alpha"),
                    .fallback = reference::fused_matmul});
}

KernelStatus blas_gemm(const KernelCall& call) {
  return run(call, {.trans_a = call.attrs->b("transA"),
                    .trans_b = call.attrs->b("transB"),
                    .alpha = call.attrs->f("alpha"),
                    .beta = call.attrs->f("beta"),
                    .c = input(call, 2),
                    .fallback = reference::gemm});
}

const char* supports_blas(const KernelQuery& query) {
  const DType dtype = query.outputs[0].dtype;
  if (!is_float(dtype)) return "integers";
  if (dtype == DType::kF64 ? libraries().dgemm == nullptr : libraries().sgemm == nullptr) return "no BLAS is loaded";
  return nullptr;
}

int64_t blas_scratch(const KernelCall& call) {
  char* end = nullptr;
  for (int i = 0; i < 2; ++i) {
    if (!usable(call.inputs[i])) dense(call.inputs[i], end);
  }
  if (!usable_output(call.outputs[0])) dense(call.outputs[0], end);
  return end - static_cast<char*>(nullptr);
}

}  // namespace lowtide::adapters
