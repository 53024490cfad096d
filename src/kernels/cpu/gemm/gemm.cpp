// Matrix products by our own packed ones.
#include "kernels/cpu/gemm/multiply.h"
#include "kernels/cpu/gemm/products.h"
#include "kernels/cpu/supports.h"
#include "kernels/kernel_lines.h"
#include "kernels/rooms.h"

namespace lowtide::cpu {
namespace {

static_assert(kSumBlockRows % kGemmDepth == 0);

// A row that is added to every row of y.
bool is_row(const TensorRef& c, const TensorRef& y) {
  const int last = c.rank - 1;
  return c.rank > 0 && c.numel() == c.sizes[last] && c.sizes[last] == y.sizes[y.rank - 1] &&
         (c.strides[last] == 1 || c.sizes[last] == 1);
}

// What is asked of a packed product, but for the addresses.
template <class Call, class Number>
struct OwnProducts : Products {
  explicit OwnProducts(const BoundCall& call);

  template <class Offsets>
  void place(Call& one, const ProductOperands& operands, const Offsets& at) const {
    one.a = static_cast<const Number*>(operands.a) + at[0];
    one.b = static_cast<const Number*>(operands.b) + at[1];
    one.c = static_cast<Number*>(operands.y) + at[2];
  }
  const Number* bias(const KernelCall& call) const { return call.inputs[2].as<Number>(); }

  Call gemm;  // for the innermost batch dim; the caller moves a, b, c for the outer ones
  bool adds_row = false;
  Grid<3> outer;
};

template <class Call, class Number>
OwnProducts<Call, Number>::OwnProducts(const BoundCall& call) : Products(call) {
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

template <class Own>
KernelStatus multiply(const KernelCall& call, const Own& products) {
  if (products.is_empty) return reference::multiply(call, products.asked);
  const ProductOperands operands = operands_of(call, products);
  auto gemm = products.gemm;
  if (products.adds_row) {
    gemm.bias = products.bias(call);
  } else if (products.beta != 0 && call.inputs[2].data != operands.y) {
    products.copy_addend.run(call.inputs[2].data, operands.y);
  }
  products.outer.for_each([&](int64_t, const auto& at) {
    products.place(gemm, operands, at);
    multiply(gemm, static_cast<char*>(call.scratch) + products.bytes, call.scratch_bytes - products.bytes);
  });
  hand_back(call, products, operands);
  return nullptr;
}

template <class Own>
int64_t multiply_scratch(const Own& products) {
  return products.is_empty ? 0 : products.bytes + multiply_scratch(products.gemm);
}

using FloatProducts = OwnProducts<Gemm, float>;
KernelStatus own_matmul(const KernelCall& call, const FloatProducts& products) { return multiply(call, products); }
int64_t own_matmul_scratch(const BoundCall& call) { return multiply_scratch(FloatProducts(call)); }
int64_t least_own_matmul_scratch(const BoundCall& call) {
  const FloatProducts products(call);
  return products.is_empty ? 0 : products.bytes + least_multiply_scratch(products.gemm);
}
const char* supports_own_matmul(const KernelQuery& query) {
  return computed_dtype(*query.attrs, query.outputs[0].dtype) == DType::kF32 ? nullptr : "not f32";
}

// a, b and y may be stored in f32; so may a row that is added, which is rounded into the scratch first.
struct HalfProducts : OwnProducts<HalfGemm, uint16_t> {
  explicit HalfProducts(const BoundCall& call) : OwnProducts(call) {
    gemm.dtype = computed_dtype(*call.attrs, call.outputs[0].dtype);
    floats[0] = call.inputs[0].dtype == DType::kF32;
    floats[1] = call.inputs[1].dtype == DType::kF32;
    floats[2] = call.outputs[0].dtype == DType::kF32;
    if (!adds_row || call.inputs[2].dtype == gemm.dtype) return;
    TensorRef row = call.inputs[2];
    row.dtype = gemm.dtype;
    copy_bias = TensorCopy(call, call.inputs[2], row);
    bias_at = bytes;
    bytes += (gemm.n * size_bytes(gemm.dtype) + 63) / 64 * 64;
  }

  template <class Offsets>
  void place(HalfGemm& one, const ProductOperands& operands, const Offsets& at) const {
    const auto find = [](bool is_float, auto* operand, int64_t offset, auto& half, auto& full) {
      full = is_float ? static_cast<decltype(+full)>(operand) + offset : nullptr;
      half = is_float ? nullptr : static_cast<decltype(+half)>(operand) + offset;
    };
    find(floats[0], operands.a, at[0], one.a, one.float_a);
    find(floats[1], operands.b, at[1], one.b, one.float_b);
    find(floats[2], operands.y, at[2], one.c, one.float_c);
  }
  const uint16_t* bias(const KernelCall& call) const {
    if (bias_at < 0) return OwnProducts::bias(call);
    char* rounded = static_cast<char*>(call.scratch) + bias_at;
    copy_bias.run(call.inputs[2].data, rounded);
    return reinterpret_cast<const uint16_t*>(rounded);
  }

  bool floats[3] = {};
  int64_t bias_at = -1;  // bytes into the scratch; -1: as it is
  TensorCopy copy_bias;
};
KernelStatus half_matmul(const KernelCall& call, const HalfProducts& products) { return multiply(call, products); }
int64_t half_matmul_scratch(const BoundCall& call) { return multiply_scratch(HalfProducts(call)); }
const char* supports_half_matmul(const KernelQuery& query) {
  const DType y = query.outputs[0].dtype, computes = computed_dtype(*query.attrs, y);
  if (!is_half(computes)) return "neither bf16 nor f16";
  const auto is_read = [&](size_t i) { return is_readable_as(computes, query.inputs[i].dtype); };
  const bool adds = query.inputs.size() > 2 && query.inputs[2].present;
  if (!is_read(0) || !is_read(1) || (adds && !is_read(2))) return "mixed dtypes";
  if (y == computes) return nullptr;
  return y != DType::kF32 || adds ? "a sum that is converted" : nullptr;
}

// ---- groups of rows, each times its own matrix; row-major operands

constexpr KernelStatus kNoGroups = "the ends of groups fall, or lie outside of the rows";

// body(group, first row, end)
template <class T, class Body>
KernelStatus for_each_group(const T* ends, int64_t groups, int64_t rows, Body body) {
  int64_t first = 0;
  for (int64_t group = 0; group < groups; ++group) {
    if (ends[group] < first || ends[group] > rows) return kNoGroups;
    body(group, first, int64_t{ends[group]});
    first = ends[group];
  }
  return nullptr;
}
template <class Body>
KernelStatus for_each_group(const TensorRef& ends, int64_t rows, Body body) {
  return ends.dtype == DType::kI32 ? for_each_group(ends.as<int32_t>(), ends.sizes[0], rows, body)
                                   : for_each_group(ends.as<int64_t>(), ends.sizes[0], rows, body);
}

struct GroupedProduct {
  explicit GroupedProduct(const BoundCall& call)
      : rows(call.inputs[0].sizes[0]),
        inner(call.inputs[0].sizes[1]),
        cols(call.outputs[0].sizes[1]),
        transposed(call.attrs->b("transB")) {}
  Gemm gemm(int64_t m) const {
    Gemm gemm;
    gemm.m = m;
    gemm.n = cols;
    gemm.k = inner;
    gemm.transpose_b = transposed;
    gemm.a_stride = inner;
    gemm.b_stride = transposed ? inner : cols;
    gemm.c_stride = cols;
    return gemm;
  }
  int64_t rows, inner, cols;
  bool transposed;
};

KernelStatus grouped_matmul(const KernelCall& call, const GroupedProduct& product) {
  const int64_t inner = product.inner, cols = product.cols;
  int64_t done = 0;
  const KernelStatus status =
      for_each_group(call.inputs[2], product.rows, [&](int64_t group, int64_t first, int64_t end) {
        done = end;
        if (first == end || inner == 0 || cols == 0) return;
        Gemm gemm = product.gemm(end - first);
        gemm.a = call.inputs[0].as<float>() + first * inner;
        gemm.b = call.inputs[1].as<float>() + group * inner * cols;
        gemm.c = call.outputs[0].as<float>() + first * cols;
        packed_gemm(gemm, call.scratch, call.scratch_bytes);
      });
  float* y = call.outputs[0].as<float>();
  const int64_t zeros_from = inner == 0 ? 0 : done;
  std::fill(y + zeros_from * cols, y + product.rows * cols, 0.0f);
  return status;
}

int64_t grouped_matmul_scratch(const BoundCall& call) {
  const GroupedProduct product(call);
  const bool is_empty = product.rows == 0 || product.inner == 0 || product.cols == 0;
  return is_empty ? 0 : packed_gemm_scratch_bytes(product.gemm(product.rows), parallel_threads());
}

// db, or its transpose: rows and columns are those that it is stored in.
struct GroupedGrad {
  explicit GroupedGrad(const BoundCall& call)
      : rows(call.inputs[0].sizes[0]),
        inner(call.inputs[0].sizes[1]),
        cols(call.inputs[1].sizes[1]),
        transposed(call.attrs->b("transB")) {}
  Gemm gemm(int64_t k) const {
    Gemm gemm;
    gemm.m = transposed ? cols : inner;
    gemm.n = transposed ? inner : cols;
    gemm.k = k;
    gemm.transpose_a = true;
    gemm.a_stride = transposed ? cols : inner;
    gemm.b_stride = gemm.n;
    gemm.c_stride = gemm.n;
    return gemm;
  }
  int64_t rows, inner, cols;
  bool transposed;
};

KernelStatus grouped_matmul_grad(const KernelCall& call, const GroupedGrad& product) {
  const int64_t inner = product.inner, cols = product.cols;
  return for_each_group(call.inputs[2], product.rows, [&](int64_t group, int64_t first, int64_t end) {
    float* db = call.outputs[0].as<float>() + group * inner * cols;
    if (first == end) std::fill(db, db + inner * cols, 0.0f);
    if (first == end || inner == 0 || cols == 0) return;
    const float *a = call.inputs[0].as<float>() + first * inner, *dy = call.inputs[1].as<float>() + first * cols;
    Gemm gemm = product.gemm(end - first);
    gemm.a = product.transposed ? dy : a;
    gemm.b = product.transposed ? a : dy;
    gemm.c = db;
    packed_gemm(gemm, call.scratch, call.scratch_bytes);
  });
}

int64_t grouped_matmul_grad_scratch(const BoundCall& call) {
  const GroupedGrad product(call);
  const bool is_empty = product.rows == 0 || product.inner == 0 || product.cols == 0;
  return is_empty ? 0 : packed_gemm_scratch_bytes(product.gemm(product.rows), parallel_threads());
}

const char* supports_grouped(const KernelQuery& query) {
  return query.outputs[0].dtype == DType::kF32 ? nullptr : "not f32";
}

}  // namespace

std::span<const Kernel> gemm_kernels() {
  static constexpr Kernel kernels[] = {
#include "kernels/cpu/gemm/list.inc"
  };
  return kernels;
}

}  // namespace lowtide::cpu
