// Matrix products by our own packed one.
#include "base/parallel.h"
#include "kernels/cpu/copy/copy.h"
#include "kernels/cpu/gemm/packed_gemm.h"
#include "kernels/cpu/gemm/products.h"
#include "kernels/kernel_lines.h"
#include "kernels/rooms.h"

namespace lowtide::cpu {
namespace {

// A row that is added to every row of y.
bool is_row(const TensorRef& c, const TensorRef& y) {
  const int last = c.rank - 1;
  return c.dtype == DType::kF32 && c.rank > 0 && c.numel() == c.sizes[last] && c.sizes[last] == y.sizes[y.rank - 1] &&
         (c.strides[last] == 1 || c.sizes[last] == 1);
}

// One call for the innermost batch dim; the caller moves a, b, c for the outer ones.
Gemm own_call(const Products& p, double alpha, double beta) {
  Gemm gemm;
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
  Gemm gemm = own_call(p, request.alpha, request.beta);
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
    packed_gemm(gemm, scratch, scratch_bytes);
  });
}

KernelStatus own_matmul(const KernelCall& call) {
  const Request request = request_of(call);
  if (nothing_to_multiply(call, request)) return reference_of(call);
  int64_t bytes = 0;
  const Products p = products_for(call, request, true, bytes);
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
  const Products p = products_for(call, request, false, bytes);
  return bytes + packed_gemm_scratch_bytes(own_call(p, request.alpha, request.beta), parallel_threads());
}

}  // namespace

std::span<const Kernel> gemm_kernels() {
  static constexpr Kernel kernels[] = {
#include "kernels/cpu/gemm/list.inc"
  };
  return kernels;
}

}  // namespace lowtide::cpu
