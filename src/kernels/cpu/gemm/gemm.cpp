// Matrix products by our own packed one.
#include "base/parallel.h"
#include "kernels/cpu/gemm/packed_gemm.h"
#include "kernels/cpu/gemm/products.h"
#include "kernels/kernel_lines.h"
#include "kernels/rooms.h"

namespace lowtide::cpu {
namespace {

static_assert(kSumBlockRows % kGemmDepth == 0);

// A row that is added to every row of y.
bool is_row(const TensorRef& c, const TensorRef& y) {
  const int last = c.rank - 1;
  return c.dtype == DType::kF32 && c.rank > 0 && c.numel() == c.sizes[last] && c.sizes[last] == y.sizes[y.rank - 1] &&
         (c.strides[last] == 1 || c.sizes[last] == 1);
}

// What is asked of packed_gemm, but for the addresses.
struct OwnProducts : Products {
  explicit OwnProducts(const BoundCall& call);

  Gemm gemm;  // for the innermost batch dim; the caller moves a, b, c for the outer ones
  bool adds_row = false;
  Grid<3> outer;
};

OwnProducts::OwnProducts(const BoundCall& call) : Products(call) {
  gemm.m = l.rows;
  gemm.n = o.cols;
  gemm.k = l.cols;
  gemm.transpose_a = !l.plain();
  gemm.transpose_b = !r.plain();
  gemm.alpha = static_cast<float>(alpha);
  gemm.beta = static_cast<float>(beta);
  gemm.a_stride = l.lead();
  gemm.b_stride = r.lead();
  gemm.c_stride = o.lead();
  if (batches.rank > 0) {
    const int last = batches.rank - 1;
    gemm.batches = batches.sizes[last];
    gemm.a_batch = batches.strides[last][0];
    gemm.b_batch = batches.strides[last][1];
    gemm.c_batch = batches.strides[last][2];
  }
  adds_row = beta == 1 && is_row(call.inputs[2], call.outputs[0]);
  if (adds_row) gemm.beta = 0;
  outer = batches;
  if (outer.rank > 0) --outer.rank;
}

KernelStatus own_matmul(const KernelCall& call, const OwnProducts& products) {
  if (products.is_empty) return reference::multiply(call, products.asked);
  const ProductOperands operands = operands_of(call, products);
  Gemm gemm = products.gemm;
  if (products.adds_row) {
    gemm.bias = call.inputs[2].as<float>();
  } else if (products.beta != 0 && call.inputs[2].data != operands.y) {
    products.copy_addend.run(call.inputs[2].data, operands.y);
  }
  products.outer.for_each([&](int64_t, const auto& at) {
    gemm.a = static_cast<const float*>(operands.a) + at[0];
    gemm.b = static_cast<const float*>(operands.b) + at[1];
    gemm.c = static_cast<float*>(operands.y) + at[2];
    packed_gemm(gemm, static_cast<char*>(call.scratch) + products.bytes, call.scratch_bytes - products.bytes);
  });
  hand_back(call, products, operands);
  return nullptr;
}

const char* supports_own_matmul(const KernelQuery& query) {
  const DType dtype = query.outputs[0].dtype;
  return dtype == DType::kF32 || is_half(dtype) ? nullptr : "neither f32, bf16 nor f16";
}

int64_t own_matmul_scratch(const BoundCall& call) {
  const OwnProducts products(call);
  return products.is_empty ? 0 : products.bytes + packed_gemm_scratch_bytes(products.gemm, parallel_threads());
}

}  // namespace

std::span<const Kernel> gemm_kernels() {
  static constexpr Kernel kernels[] = {
#include "kernels/cpu/gemm/list.inc"
  };
  return kernels;
}

}  // namespace lowtide::cpu
