// Matrix products by the BLAS that the process has loaded (base/libraries.h).
#include <algorithm>
#include <limits>

#include "base/libraries.h"
#include "base/parallel.h"
#include "kernels/blas/attention.h"
#include "kernels/cpu/gemm/products.h"
#include "kernels/kernel_lines.h"
#include "kernels/packed_heads.h"
#include "kernels/rooms.h"

namespace lowtide::cpu {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int>::max();
// Products below this many multiplications run one a thread, larger ones on all threads one after another.
constexpr int64_t kSmallProduct = int64_t{1} << 22;

struct BlasProducts : Products {
  explicit BlasProducts(const BoundCall& call) : Products(call) {
    for (const TensorRef* tensor : {&call.inputs[0], &call.inputs[1], &call.outputs[0]})
      is_too_large =
          is_too_large || tensor->sizes[tensor->rank - 1] > kMaxInt || tensor->sizes[tensor->rank - 2] > kMaxInt;
  }
  bool is_too_large = false;
};

// BLAS is column-major, so the row-major product goes in with its operands swapped.
template <class T>
void run_blas(const Products& p, const ProductOperands& operands, BlasGemm<T> gemm, T alpha, T beta) {
  const char left_op = p.l.plain() ? 'N' : 'T', right_op = p.r.plain() ? 'N' : 'T';
  const int m = static_cast<int>(p.l.rows), n = static_cast<int>(p.o.cols), k = static_cast<int>(p.l.cols);
  const int left_lead = static_cast<int>(p.l.lead()), right_lead = static_cast<int>(p.r.lead()),
            out_lead = static_cast<int>(p.o.lead());
  auto product = [&](int64_t, const auto& at) {
    gemm(&right_op, &left_op, &n, &m, &k, &alpha, static_cast<const T*>(operands.b) + at[1], &right_lead,
         static_cast<const T*>(operands.a) + at[0], &left_lead, &beta, static_cast<T*>(operands.y) + at[2], &out_lead);
  };
  const int64_t batches = p.batches.numel(), work = p.l.rows * p.l.cols * p.o.cols;
  if (batches > 1 && work < kSmallProduct) {
    parallel_for(batches, std::max<int64_t>(1, (1 << 18) / std::max<int64_t>(1, work)),
                 [&](int64_t begin, int64_t end) { p.batches.for_each(begin, end, product); });
  } else {
    p.batches.for_each(product);
  }
}

KernelStatus blas_matmul(const KernelCall& call, const BlasProducts& products) {
  if (products.is_too_large || products.is_empty) return reference::multiply(call, products.asked);
  const ProductOperands operands = operands_of(call, products);
  if (products.beta != 0) products.copy_addend.run(call.inputs[2].data, operands.y);
  if (products.is_double) {
    run_blas<double>(products, operands, libraries().dgemm, products.alpha, products.beta);
  } else {
    run_blas<float>(products, operands, libraries().sgemm, static_cast<float>(products.alpha),
                    static_cast<float>(products.beta));
  }
  hand_back(call, products, operands);
  return nullptr;
}

const char* supports_blas(const KernelQuery& query) {
  const DType dtype = computed_dtype(*query.attrs, query.outputs[0].dtype);
  if (dtype != DType::kF32 && dtype != DType::kF64) return "neither f32 nor f64";
  if (dtype == DType::kF64 ? libraries().dgemm == nullptr : libraries().sgemm == nullptr) return "no BLAS is loaded";
  return nullptr;
}

int64_t blas_scratch(const BoundCall& call) { return Products(call).bytes; }

}  // namespace

std::span<const Kernel> blas_kernels() {
  static constexpr Kernel kernels[] = {
#include "kernels/blas/list.inc"
  };
  return kernels;
}

}  // namespace lowtide::cpu
