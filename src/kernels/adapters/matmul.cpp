// Matrix multiply by our own packed product (cpu/gemm.h, f32) and by the BLAS that the process has loaded
// (base/libraries.h). Transposes and leading strides go in as flags; other layouts, bf16 and f16 through scratch.
#include <algorithm>
#include <limits>

#include "base/libraries.h"
#include "kernels/adapters/list.h"
#include "kernels/adapters/strided.h"
#include "kernels/cpu/gemm.h"
#include "kernels/reference/reference.h"

namespace lowtide::adapters {

namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int>::max();
// BLAS products below this many multiplications run one a thread, larger ones on all threads one after another.
constexpr int64_t kSmallProduct = int64_t{1} << 22;

// The last two dims of an operand: plain is row-major with leading stride `lead`, flipped its transpose.
struct Matrix {
  int64_t rows, cols, row_stride, col_stride;

  bool plain() const {
    return (col_stride == 1 || cols == 1) && (row_stride >= std::max<int64_t>(cols, 1) || rows == 1);
  }
  bool flipped() const {
    return (row_stride == 1 || rows == 1) && (col_stride >= std::max<int64_t>(rows, 1) || cols == 1);
  }
  bool direct() const { return plain() || flipped(); }
  int64_t lead() const {
    const bool is_plain = plain();
    const int64_t least = std::max<int64_t>(is_plain ? cols : rows, 1), lines = is_plain ? rows : cols;
    return lines == 1 ? least : is_plain ? row_stride : col_stride;
  }
};

Matrix matrix_of(const TensorRef& tensor, bool transposed) {
  const int r = tensor.rank - 2, c = tensor.rank - 1;
  if (transposed) return {tensor.sizes[c], tensor.sizes[r], tensor.strides[c], tensor.strides[r]};
  return {tensor.sizes[r], tensor.sizes[c], tensor.strides[r], tensor.strides[c]};
}

bool usable(const TensorRef& tensor) { return !is_half(tensor.dtype) && matrix_of(tensor, false).direct(); }
bool usable_output(const TensorRef& tensor) { return !is_half(tensor.dtype) && matrix_of(tensor, false).plain(); }

// What the op asks for; c may be null.
struct Request {
  bool trans_a = false, trans_b = false;
  double alpha = 1, beta = 0;
  const TensorRef* c = nullptr;
};

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

// A product whose operands all fit: every batch of the grid (offsets of a, b, y) is alpha l r + beta o.
struct Products {
  TensorRef a, b, y;
  Matrix l, r, o;
  Grid<3> batches;
};

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

// The operands as an engine takes them; `bytes` of scratch go to stand-ins. Fills them if `fill`.
Products prepare(const KernelCall& call, const Request& request, bool fill, int64_t& bytes) {
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

// A row that is added to every row of y.
bool is_row(const TensorRef& c, const TensorRef& y) {
  const int last = c.rank - 1;
  return c.dtype == DType::kF32 && c.rank > 0 && c.numel() == c.sizes[last] && c.sizes[last] == y.sizes[y.rank - 1] &&
         (c.strides[last] == 1 || c.sizes[last] == 1);
}

bool too_large(const KernelCall& call) {
  for (const TensorRef* tensor : {&call.inputs[0], &call.inputs[1], &call.outputs[0]}) {
    if (tensor->sizes[tensor->rank - 1] > kMaxInt || tensor->sizes[tensor->rank - 2] > kMaxInt) return true;
  }
  return false;
}

KernelStatus reference_of(const KernelCall& call) {
  if (call.attrs->has("beta")) return reference::gemm(call);
  return call.attrs->has("transA") ? reference::fused_matmul(call) : reference::matmul(call);
}

// ---- BLAS: column-major, so the row-major product with its operands swapped.

template <class T>
void run_blas(const Products& p, BlasGemm<T> gemm, T alpha, T beta) {
  const char left_op = p.l.plain() ? 'N' : 'T', right_op = p.r.plain() ? 'N' : 'T';
  const int m = static_cast<int>(p.l.rows), n = static_cast<int>(p.o.cols), k = static_cast<int>(p.l.cols);
  const int left_lead = static_cast<int>(p.l.lead()), right_lead = static_cast<int>(p.r.lead()),
            out_lead = static_cast<int>(p.o.lead());
  auto product = [&](int64_t, const auto& at) {
    gemm(&right_op, &left_op, &n, &m, &k, &alpha, p.b.as<T>() + at[1], &right_lead, p.a.as<T>() + at[0], &left_lead,
         &beta, p.y.as<T>() + at[2], &out_lead);
  };
  const int64_t batches = p.batches.numel(), work = p.l.rows * p.l.cols * p.o.cols;
  if (batches > 1 && work < kSmallProduct) {
    parallel_for(batches, std::max<int64_t>(1, (1 << 18) / std::max<int64_t>(1, work)),
                 [&](int64_t begin, int64_t end) { p.batches.for_each(begin, end, product); });
  } else {
    p.batches.for_each(product);
  }
}

// ---- our own

// One call for the innermost batch dim; the caller moves a, b, c for the outer ones.
cpu::Gemm own_call(const Products& p, double alpha, double beta) {
  cpu::Gemm gemm;
  gemm.m = p.l.rows;
  gemm.n = p.o.cols;
  gemm.k = p.l.cols;
  gemm.transpose_a = !p.l.plain();
  gemm.transpose_b = !p.r.plain();
  gemm.alpha = static_cast<float>(alpha);
  gemm.beta = static_cast<float>(beta);
  gemm.a_stride = p.l.lead();
  gemm.b_stride = p.r.lead();
  gemm.c_stride = p.o.lead();
  if (p.batches.rank > 0) {
    const int last = p.batches.rank - 1;
    gemm.batches = p.batches.sizes[last];
    gemm.a_batch = p.batches.strides[last][0];
    gemm.b_batch = p.batches.strides[last][1];
    gemm.c_batch = p.batches.strides[last][2];
  }
  return gemm;
}

void run_own(const Products& p, const Request& request, void* scratch, int64_t scratch_bytes) {
  cpu::Gemm gemm = own_call(p, request.alpha, request.beta);
  if (request.beta == 1 && is_row(*request.c, p.y)) {
    gemm.beta = 0;
    gemm.bias = request.c->as<float>();
  } else if (request.beta != 0) {
    copy_tensor(*request.c, p.y);
  }
  Grid<3> outer = p.batches;
  if (outer.rank > 0) --outer.rank;
  outer.for_each([&](int64_t, const auto& at) {
    gemm.a = p.a.as<float>() + at[0];
    gemm.b = p.b.as<float>() + at[1];
    gemm.c = p.y.as<float>() + at[2];
    cpu::gemm(gemm, scratch, scratch_bytes);
  });
}

bool nothing_to_multiply(const KernelCall& call, const Request& request) {
  return call.outputs[0].numel() == 0 || matrix_of(call.inputs[0], request.trans_a).cols == 0;
}

}  // namespace

KernelStatus blas_matmul(const KernelCall& call) {
  const Request request = request_of(call);
  if (too_large(call) || nothing_to_multiply(call, request)) return reference_of(call);
  int64_t bytes = 0;
  const Products p = prepare(call, request, true, bytes);
  if (request.beta != 0) copy_tensor(*request.c, p.y);
  if (p.y.dtype == DType::kF64) {
    run_blas<double>(p, libraries().dgemm, request.alpha, request.beta);
  } else {
    run_blas<float>(p, libraries().sgemm, static_cast<float>(request.alpha), static_cast<float>(request.beta));
  }
  if (p.y.data != call.outputs[0].data) copy_tensor(p.y, call.outputs[0]);
  return nullptr;
}

const char* supports_blas(const KernelQuery& query) {
  const DType dtype = query.outputs[0].dtype;
  if (!is_float(dtype)) return "integers";
  if (dtype == DType::kF64 ? libraries().dgemm == nullptr : libraries().sgemm == nullptr) return "no BLAS is loaded";
  return nullptr;
}

int64_t blas_scratch(const KernelCall& call) {
  int64_t bytes = 0;
  prepare(call, request_of(call), false, bytes);
  return bytes;
}

KernelStatus own_matmul(const KernelCall& call) {
  const Request request = request_of(call);
  if (nothing_to_multiply(call, request)) return reference_of(call);
  int64_t bytes = 0;
  const Products p = prepare(call, request, true, bytes);
  run_own(p, request, static_cast<char*>(call.scratch) + bytes, call.scratch_bytes - bytes);
  if (p.y.data != call.outputs[0].data) copy_tensor(p.y, call.outputs[0]);
  return nullptr;
}

const char* supports_own_matmul(const KernelQuery& query) {
  const DType dtype = query.outputs[0].dtype;
  return dtype == DType::kF32 || is_half(dtype) ? nullptr : "neither f32, bf16 nor f16";
}

int64_t own_matmul_scratch(const KernelCall& call) {
  const Request request = request_of(call);
  if (nothing_to_multiply(call, request)) return 0;
  int64_t bytes = 0;
  const Products p = prepare(call, request, false, bytes);
  return bytes + cpu::gemm_scratch_bytes(own_call(p, request.alpha, request.beta), parallel_threads());
}

}  // namespace lowtide::adapters
