#include "kernels/cpu/loss/linear_cross_entropy.h"

#include "base/parallel.h"
#include "kernels/cpu/gemm/packed_gemm.h"

namespace lowtide::cpu {
namespace {

static_assert(kLossRows % kGemmDepth == 0 && kLossRows % kRowsPerBlock == 0);

// The gradients that are wanted; null: not this one.
struct Gradients {
  float *x, *weight, *bias;
  bool any() const { return x != nullptr || weight != nullptr || bias != nullptr; }
};

// Rows of the layer: the products of one block of them.
struct Layer {
  int64_t inner, classes;
  const float *x, *weight, *bias;

  // z[rows, classes] = x W^T + bias
  Gemm logits(int64_t first, int64_t rows, float* z) const {
    return {.m = rows,
            .n = classes,
            .k = inner,
            .transpose_b = true,
            .a = shifted(x, first * inner),
            .a_stride = inner,
            .b = weight,
            .b_stride = inner,
            .c = z,
            .c_stride = classes,
            .bias = bias};
  }
  // dx[rows, inner] = dz W
  Gemm input_gradient(int64_t first, int64_t rows, const float* dz, float* dx) const {
    return {.m = rows,
            .n = inner,
            .k = classes,
            .a = dz,
            .a_stride = classes,
            .b = weight,
            .b_stride = inner,
            .c = shifted(dx, first * inner),
            .c_stride = inner};
  }
  // dW[classes, inner] += dz^T x; the first block's is dW.
  Gemm weight_gradient(int64_t first, int64_t rows, const float* dz, float* dweight) const {
    return {.m = classes,
            .n = inner,
            .k = rows,
            .transpose_a = true,
            .beta = first == 0 ? 0.0f : 1.0f,
            .a = dz,
            .a_stride = classes,
            .b = shifted(x, first * inner),
            .b_stride = inner,
            .c = dweight,
            .c_stride = inner};
  }

  int64_t gemm_scratch(int64_t rows) const {
    int64_t most = 0;
    for (const Gemm& product : {logits(0, rows, nullptr), input_gradient(0, rows, nullptr, nullptr),
                                weight_gradient(0, rows, nullptr, nullptr)})
      most = std::max(most, packed_gemm_scratch_bytes(product, parallel_threads()));
    return most;
  }
};

// dbias += column sums of dz[rows, classes], by blocks of kRowsPerBlock.
void add_columns(const float* dz, int64_t first, int64_t rows, int64_t classes, float* dbias) {
  constexpr int64_t kPanel = 256;
  const auto sum_rows = reductions_table().sum_rows[kStoredF32];
  for_row_chunks((classes + kPanel - 1) / kPanel, kPanel * rows, 0.2, [&](int64_t panel, int64_t count) {
    const int64_t begin = panel * kPanel, cols = std::min(count * kPanel, classes - begin);
    if (first == 0) std::fill(dbias + begin, dbias + begin + cols, 0.0f);
    for (int64_t r = 0; r < rows; r += kRowsPerBlock)
      sum_rows(dz + r * classes + begin, classes, dbias + begin, std::min(kRowsPerBlock, rows - r), cols, true);
  });
}

// As many rows at a time as two thirds of the columns of W, or 1,024: the more, the less often W is packed, and their
// logits are still less than dW.
int64_t block_rows(int64_t rows, int64_t inner) {
  const int64_t wanted = std::clamp(inner * 2 / 3 / kLossRows * kLossRows, kLossRows, 4 * kLossRows);
  return std::min(rows, wanted);
}

int64_t block_bytes(const LinearLossTerms& terms) { return aligned(terms.block * terms.classes * kFloatBytes); }
// A log-sum-exp and a loss for every row.
int64_t row_bytes(const LinearLossTerms& terms) { return aligned(2 * terms.rows * kFloatBytes); }

// What makes gradients of a block's dz.
struct Products {
  const LinearLossTerms& terms;
  Layer layer;
  Gradients gradients;
  void* scratch;

  void run(const Gemm& product) const { packed_gemm(product, scratch, terms.gemm_scratch); }
  void add(int64_t first, int64_t rows, const float* dz) const {
    if (gradients.weight) run(layer.weight_gradient(first, rows, dz, gradients.weight));
    if (gradients.x) run(layer.input_gradient(first, rows, dz, gradients.x));
    if (gradients.bias) add_columns(dz, first, rows, terms.classes, gradients.bias);
  }
  // Where no block has written them.
  void clear() const {
    if (gradients.weight) std::fill(gradients.weight, gradients.weight + terms.classes * terms.inner, 0.0f);
    if (gradients.bias) std::fill(gradients.bias, gradients.bias + terms.classes, 0.0f);
  }
};

}  // namespace

LinearLossTerms::LinearLossTerms(const BoundCall& call, Rows logits, int64_t columns)
    : LossTerms(call, logits),
      inner(columns),
      block(block_rows(logits.rows, columns)),
      gemm_scratch(Layer{columns, logits.cols, nullptr, nullptr, nullptr}.gemm_scratch(block)) {}

const char* supports_linear_cross_entropy(const KernelQuery& query) {
  return query.inputs[0].dtype == DType::kF32 ? nullptr : "not f32";
}

int64_t linear_cross_entropy_scratch(const BoundCall& call) {
  const LinearLossTerms terms(call);
  return block_bytes(terms) + row_bytes(terms) + terms.gemm_scratch;
}

KernelStatus linear_cross_entropy(const KernelCall& call, const LinearLossTerms& terms) {
  const Loss loss(terms, call.inputs[2]);
  if (loss.has_bad_label()) return kBadLabel;
  char* scratch = static_cast<char*>(call.scratch);
  float* z = reinterpret_cast<float*>(scratch);
  float* lse = reinterpret_cast<float*>(scratch + block_bytes(terms));
  float* row_loss = lse + terms.rows;
  const Products products{
      terms,
      {terms.inner, terms.classes, input_floats(call, 0), input_floats(call, 1), input_floats(call, 3)},
      {output_floats(call, 1), output_floats(call, 2), output_floats(call, 3)},
      scratch + block_bytes(terms) + row_bytes(terms)};
  const float one = 1;
  if (terms.rows == 0) products.clear();
  for (int64_t first = 0; first < terms.rows; first += terms.block) {
    const int64_t rows = std::min(terms.block, terms.rows - first);
    products.run(products.layer.logits(first, rows, z));
    loss.forward(z, first, rows, row_loss, lse);
    if (!products.gradients.any()) continue;
    loss.backward(z, first, rows, lse, &one, z);
    products.add(first, rows, z);
  }
  if (float* result = output_floats(call, 0)) *result = loss.reduced(row_loss);
  return nullptr;
}

const char* supports_linear_cross_entropy_grad(const KernelQuery& query) {
  return query.inputs[1].dtype == DType::kF32 && !query.attrs->has("computes") ? nullptr : "not f32";
}

int64_t linear_cross_entropy_grad_scratch(const BoundCall& call) {
  const LinearLossGradTerms terms(call);
  return block_bytes(terms) + terms.gemm_scratch;
}

KernelStatus linear_cross_entropy_grad(const KernelCall& call, const LinearLossGradTerms& terms) {
  const Loss loss(terms, call.inputs[2]);
  if (loss.has_bad_label()) return kBadLabel;
  char* scratch = static_cast<char*>(call.scratch);
  float* dz = reinterpret_cast<float*>(scratch);
  const float *logits = input_floats(call, 1), *sent = input_floats(call, 6);
  const Products products{terms,
                          {terms.inner, terms.classes, input_floats(call, 5), input_floats(call, 4), nullptr},
                          {output_floats(call, 0), output_floats(call, 1), output_floats(call, 2)},
                          scratch + block_bytes(terms)};
  if (terms.rows == 0) products.clear();
  for (int64_t first = 0; first < terms.rows; first += terms.block) {
    const int64_t rows = std::min(terms.block, terms.rows - first), begin = first * terms.classes;
    loss.backward(logits + begin, first, rows, input_floats(call, 3), input_floats(call, 0), dz);
    if (sent != nullptr) {
      for_row_chunks(rows, terms.classes, 0.3, [&](int64_t row, int64_t count) {
        for (int64_t i = row * terms.classes; i < (row + count) * terms.classes; ++i) dz[i] += sent[begin + i];
      });
    }
    products.add(first, rows, dz);
  }
  return nullptr;
}

}  // namespace lowtide::cpu
