#include "kernels/cpu/loss/half_linear_cross_entropy.h"

#include "kernels/cpu/summed_rows.h"

namespace lowtide::cpu {
namespace {

constexpr int64_t kPanelClasses = 1024;
static_assert(kPanelClasses % kGemmDepth == 0);

// Classes [first, first + classes) of all rows; dz is dense.
struct Panel {
  const HalfLinearLossGradTerms& terms;
  int64_t first, classes;
  TensorRef dz;

  Panel(const HalfLinearLossGradTerms& terms, int64_t first, void* memory)
      : terms(terms), first(first), classes(std::min(terms.panel, terms.classes - first)) {
    dz.data = memory;
    dz.dtype = terms.dtype;
  }

  // dz = dloss / divisor (exp(x - lse) - target), plus what else flows into the logits.
  void fill(const KernelCall& call, const Loss& loss) const {
    const TensorRef& logits = call.inputs[1];
    const TensorRef* sent = input(call, 6);
    const float *lse = input_floats(call, 3), s = terms.smoothing, g = *input_floats(call, 0) / loss.divisor();
    for_row_chunks(terms.rows, classes, 0.7, [&](int64_t begin, int64_t n) {
      float in[kPanelClasses], out[kPanelClasses], other[kPanelClasses];
      static_assert(kPanelClasses <= kRun);
      for (int64_t r = begin; r < begin + n; ++r) {
        const int64_t at = r * terms.classes + first, label = loss.labels[r] - first;
        if (loss.labels[r] == terms.ignore_index) {
          std::fill(out, out + classes, 0.0f);
        } else {
          loss_table().grad(read(logits, at, 1, classes, in), out, classes, lse[r], g,
                            g * s / static_cast<float>(terms.classes));
          if (label >= 0 && label < classes) out[label] -= g * (1 - s);
        }
        if (sent != nullptr && sent->data != nullptr) {
          round_run(terms.dtype, out, classes);
          const float* added = read(*sent, at, 1, classes, other);
          for (int64_t c = 0; c < classes; ++c) out[c] += added[c];
        }
        write(dz, r * classes, 1, classes, out);
      }
    });
  }

  // x, the weight and the results may be stored in f32; without data where only sizes count.
  HalfGemm weight_gradient(const TensorRef& x, const TensorRef* dweight) const {
    HalfGemm product = products();
    product.m = classes;
    product.n = terms.inner;
    product.k = terms.rows;
    product.transpose_a = true;
    set_b(product, x, 0);
    if (dweight == nullptr) return product;
    if (dweight->dtype == DType::kF32)
      product.float_c = shifted(dweight->as<float>(), first * terms.inner);
    else
      product.c = shifted(dweight->as<uint16_t>(), first * terms.inner);
    return product;
  }
  HalfGemm input_gradient(const TensorRef& weight, float* dx) const {
    HalfGemm product = products();
    product.m = terms.rows;
    product.n = terms.inner;
    product.k = classes;
    set_b(product, weight, first * terms.inner);
    product.sums = dx;
    product.adds = first > 0;
    return product;
  }
  void sum_columns(const TensorRef& dbias, float* sums) const {
    std::fill(sums, sums + classes, 0.0f);
    SummedRows{dz, 0, terms.rows, classes}.add_columns(sums);
    if (dbias.dtype == DType::kF32) round_run(terms.dtype, sums, classes);
    write(dbias, first, 1, classes, sums);
  }

 private:
  static void set_b(HalfGemm& product, const TensorRef& b, int64_t offset) {
    if (b.dtype == DType::kF32)
      product.float_b = shifted(b.as<const float>(), offset);
    else
      product.b = shifted(b.as<const uint16_t>(), offset);
  }
  HalfGemm products() const {
    HalfGemm product;
    product.dtype = terms.dtype;
    product.a = dz.as<uint16_t>();
    product.a_stride = classes;
    product.b_stride = product.c_stride = terms.inner;
    return product;
  }
};

}  // namespace

HalfLinearLossGradTerms::HalfLinearLossGradTerms(const BoundCall& call)
    : LossTerms(call, rows_of(call.inputs[1])),
      dtype(computed_dtype(*call.attrs, call.inputs[1].dtype)),
      inner(call.inputs[4].sizes[1]),
      panel(std::min(kPanelClasses, classes)),
      dz_bytes(aligned(rows * panel * 2)),
      dx_bytes(aligned(rows * inner * kFloatBytes)),
      sum_bytes(aligned(panel * kFloatBytes)) {
  const Panel widest(*this, 0, nullptr);
  const TensorRef absent, &x = call.inputs.size() > 5 ? call.inputs[5] : absent;
  gemm_bytes = std::max(half_gemm_scratch_bytes(widest.weight_gradient(x, nullptr), parallel_threads()),
                        half_gemm_scratch_bytes(widest.input_gradient(call.inputs[4], nullptr), parallel_threads()));
}

const char* supports_half_linear_cross_entropy_grad(const KernelQuery& query) {
  if (query.inputs[0].dtype != DType::kF32) return "the gradient of the loss is not f32";
  const DType computes = computed_dtype(*query.attrs, query.inputs[1].dtype);
  if (!is_half(computes) || query.inputs[1].dtype != computes) return "neither bf16 nor f16";
  const bool has_other = query.inputs.size() > 6 && query.inputs[6].present && query.inputs[6].dtype != computes;
  return has_other ? "mixed dtypes" : nullptr;
}

int64_t half_linear_cross_entropy_grad_scratch(const BoundCall& call) {
  const HalfLinearLossGradTerms terms(call);
  return terms.dz_bytes + terms.dx_bytes + terms.sum_bytes + terms.gemm_bytes;
}

KernelStatus half_linear_cross_entropy_grad(const KernelCall& call, const HalfLinearLossGradTerms& terms) {
  const Loss loss(terms, call.inputs[2]);
  if (loss.has_bad_label()) return kBadLabel;
  char* scratch = static_cast<char*>(call.scratch);
  float *dx = reinterpret_cast<float*>(scratch + terms.dz_bytes), *sums = dx + terms.dx_bytes / kFloatBytes;
  char* own = scratch + terms.dz_bytes + terms.dx_bytes + terms.sum_bytes;
  const TensorRef *to_x = output(call, 0), *to_weight = output(call, 1), *to_bias = output(call, 2);
  if (terms.rows == 0) {
    for (const TensorRef* sum : {to_weight, to_bias})
      if (sum != nullptr) std::fill_n(sum->as<char>(), sum->numel() * size_bytes(sum->dtype), char{0});
    return nullptr;
  }
  for (int64_t first = 0; first < terms.classes; first += terms.panel) {
    const Panel panel(terms, first, scratch);
    panel.fill(call, loss);
    if (to_weight != nullptr) half_gemm(panel.weight_gradient(call.inputs[5], to_weight), own, terms.gemm_bytes);
    if (to_bias != nullptr) panel.sum_columns(*to_bias, sums);
    if (to_x != nullptr) half_gemm(panel.input_gradient(call.inputs[4], dx), own, terms.gemm_bytes);
  }
  if (to_x == nullptr) return nullptr;
  parallel_for(terms.rows, 16, [&](int64_t begin, int64_t end) {
    const int64_t stop = end * terms.inner;
    for (int64_t i = begin * terms.inner; i < stop; i += kRun) {
      const int64_t n = std::min(kRun, stop - i);
      if (to_x->dtype == DType::kF32) round_run(terms.dtype, dx + i, n);
      write(*to_x, i, 1, n, dx + i);
    }
  });
  return nullptr;
}

}  // namespace lowtide::cpu
