#include "kernels/cpu/loss/half_linear_cross_entropy.h"

#include "kernels/cpu/summed_rows.h"
#include "kernels/cpu/supports.h"

namespace lowtide::cpu {
namespace {

static_assert(kLogitPanel % kGemmDepth == 0);

// Operands that are stored in f32 or in 16 bits; without data where only sizes count.
void set_a(HalfGemm& product, const TensorRef& a) {
  if (a.dtype == DType::kF32)
    product.float_a = a.as<const float>();
  else
    product.a = a.as<const uint16_t>();
}
void set_b(HalfGemm& product, const TensorRef& b, int64_t offset) {
  if (b.dtype == DType::kF32)
    product.float_b = shifted(b.as<const float>(), offset);
  else
    product.b = shifted(b.as<const uint16_t>(), offset);
}

// Where the logits of a panel lie: the number of its first row and class, and how far rows are apart.
struct PanelLogits {
  const TensorRef& tensor;
  int64_t at, row_stride;
};

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

  // dz = dloss / divisor (exp(x - lse) - target), plus what else flows into the logits (null: nothing).
  void fill(const KernelCall& call, const Loss& loss, const PanelLogits& logits, const TensorRef* sent) const {
    const float *lse = input_floats(call, 3), s = terms.smoothing, g = *input_floats(call, 0) / loss.divisor();
    for_row_chunks(terms.rows, classes, 0.7, [&](int64_t begin, int64_t n) {
      float in[kLogitPanel], out[kLogitPanel], other[kLogitPanel];
      static_assert(kLogitPanel <= kRun);
      for (int64_t r = begin; r < begin + n; ++r) {
        const int64_t label = loss.labels[r] - first;
        if (loss.labels[r] == terms.ignore_index) {
          std::fill(out, out + classes, 0.0f);
        } else {
          loss_table().grad(read(logits.tensor, logits.at + r * logits.row_stride, 1, classes, in), out, classes,
                            lse[r], g, g * s / static_cast<float>(terms.classes));
          if (label >= 0 && label < classes) out[label] -= g * (1 - s);
        }
        if (sent != nullptr && sent->data != nullptr) {
          round_run(terms.dtype, out, classes);
          const float* added = read(*sent, r * terms.classes + first, 1, classes, other);
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
  HalfGemm products() const {
    HalfGemm product;
    product.dtype = terms.dtype;
    product.a = dz.as<uint16_t>();
    product.a_stride = classes;
    product.b_stride = product.c_stride = terms.inner;
    return product;
  }
};

// Panel after panel, then what they add up to. logits(panel) says where those of a panel lie.
template <class Logits>
KernelStatus go_by_panels(const KernelCall& call, const HalfLinearLossGradTerms& terms, const TensorRef* sent,
                          Logits logits) {
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
    panel.fill(call, loss, logits(panel), sent);
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

// The numbers of `dtype` that a row of the weight's gradient has room for.
int64_t gradient_row(const TensorRef& gradient, DType dtype) {
  return gradient.sizes[1] * size_bytes(gradient.dtype) / size_bytes(dtype);
}

TensorRef panel_of(const LogitPanels& places, int64_t p, const TensorRef& gradient, const TensorRef& rest,
                   DType dtype) {
  TensorRef panel;
  panel.dtype = dtype;
  panel.data = (places.is_in_gradient(p) ? gradient : rest).as<uint16_t>() + places.offset(p);
  return panel;
}

int64_t scratch_of(const HalfLinearLossGradTerms& terms) {
  return terms.dz_bytes + terms.dx_bytes + terms.sum_bytes + terms.gemm_bytes;
}

}  // namespace

HalfLinearLossGradTerms::HalfLinearLossGradTerms(const BoundCall& call, Rows logits, DType stored)
    : LossTerms(call, logits),
      dtype(computed_dtype(*call.attrs, stored)),
      inner(call.inputs[4].sizes[1]),
      panel(std::min(kLogitPanel, classes)),
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
  return scratch_of(HalfLinearLossGradTerms(call));
}

KernelStatus half_linear_cross_entropy_grad(const KernelCall& call, const HalfLinearLossGradTerms& terms) {
  return go_by_panels(call, terms, input(call, 6),
                      [&](const Panel& panel) { return PanelLogits{call.inputs[1], panel.first, terms.classes}; });
}

// ---- logits in panels

HalfPanelLossGradTerms::HalfPanelLossGradTerms(const BoundCall& call)
    : HalfLinearLossGradTerms(call, {call.inputs[5].sizes[0], call.inputs[4].sizes[0]}, call.inputs[6].dtype),
      places(rows, classes, gradient_row(call.inputs[1], dtype)) {}

const char* supports_half_panel_cross_entropy_grad(const KernelQuery& query) {
  const DType computes = computed_dtype(*query.attrs, query.inputs[6].dtype);
  if (!is_half(computes) || query.inputs[6].dtype != computes) return "neither bf16 nor f16";
  return query.inputs[0].dtype == DType::kF32 ? nullptr : "the gradient of the loss is not f32";
}

int64_t half_panel_cross_entropy_grad_scratch(const BoundCall& call) {
  return scratch_of(HalfPanelLossGradTerms(call));
}

KernelStatus half_panel_cross_entropy_grad(const KernelCall& call, const HalfPanelLossGradTerms& terms) {
  TensorRef logits;
  return go_by_panels(call, terms, nullptr, [&](const Panel& panel) {
    logits = panel_of(terms.places, panel.first / kLogitPanel, call.inputs[1], call.inputs[6], terms.dtype);
    return PanelLogits{logits, 0, panel.classes};
  });
}

HalfPanelLossTerms::HalfPanelLossTerms(const BoundCall& call)
    : LossTerms(call, Rows{call.inputs[0].sizes[0], call.inputs[1].sizes[0]}),
      dtype(call.outputs[3].dtype),
      inner(call.inputs[1].sizes[1]),
      block(loss_block_rows({rows, classes})),
      places(rows, classes, gradient_row(call.outputs[2], dtype)),
      wide_bytes(aligned(block * classes * kFloatBytes)),
      row_bytes(aligned(2 * rows * kFloatBytes)),
      bias_bytes(call.inputs.size() > 3 && call.inputs[3].dtype == DType::kF32 ? aligned(classes * 2) : 0),
      gemm_bytes(0) {
  gemm_bytes = half_gemm_scratch_bytes(product(0), parallel_threads());
}

HalfGemm HalfPanelLossTerms::product(int64_t panel) const {
  HalfGemm product;
  product.dtype = dtype;
  product.m = rows;
  product.n = product.c_stride = places.width(panel);
  product.k = product.a_stride = product.b_stride = inner;
  product.transpose_b = true;
  return product;
}

const char* supports_half_panel_cross_entropy(const KernelQuery& query) {
  const DType computes = query.outputs[3].dtype;
  if (!is_half(computes)) return "neither bf16 nor f16";
  const bool adds = query.inputs.size() > 3 && query.inputs[3].present;
  for (size_t i : {0, 1, 3})
    if ((i < 3 || adds) && !is_readable_as(computes, query.inputs[i].dtype)) return "mixed dtypes";
  return nullptr;
}

int64_t half_panel_cross_entropy_scratch(const BoundCall& call) {
  const HalfPanelLossTerms terms(call);
  return terms.wide_bytes + terms.row_bytes + terms.bias_bytes + terms.gemm_bytes;
}

KernelStatus half_panel_cross_entropy(const KernelCall& call, const HalfPanelLossTerms& terms) {
  const Loss loss(terms, call.inputs[2]);
  if (loss.has_bad_label()) return kBadLabel;
  char* scratch = static_cast<char*>(call.scratch);
  float *wide = reinterpret_cast<float*>(scratch), *row_loss = wide + terms.wide_bytes / kFloatBytes;
  char* stored_bias = scratch + terms.wide_bytes + terms.row_bytes;
  const uint16_t* bias = nullptr;
  if (const TensorRef* row = input(call, 3)) {
    bias = row->as<uint16_t>();
    if (terms.bias_bytes > 0) {
      TensorRef narrow = *row;
      narrow.dtype = terms.dtype;
      narrow.data = stored_bias;
      for (int64_t c = 0; c < terms.classes; c += kRun)
        write(narrow, c, 1, std::min(kRun, terms.classes - c), row->as<float>() + c);
      bias = narrow.as<uint16_t>();
    }
  }
  const TensorRef &x = call.inputs[0], &weight = call.inputs[1];
  const auto place = [&](int64_t p) {
    return panel_of(terms.places, p, call.outputs[2], call.outputs[3], terms.dtype);
  };
  for (int64_t p = 0; p < terms.places.count() && terms.rows > 0; ++p) {
    HalfGemm product = terms.product(p);
    const int64_t first = p * kLogitPanel;
    set_a(product, x);
    set_b(product, weight, first * terms.inner);
    product.c = place(p).as<uint16_t>();
    product.bias = shifted(bias, first);
    half_gemm(product, stored_bias + terms.bias_bytes, terms.gemm_bytes);
  }
  float *result = output_floats(call, 0), *lse = output_floats(call, 1);
  if (lse == nullptr) lse = row_loss + terms.rows;
  forward_of_panels(loss, terms.places, place, 0, terms.rows, terms.block, wide, row_loss, lse);
  if (result != nullptr) *result = loss.reduced(row_loss);
  return nullptr;
}

}  // namespace lowtide::cpu
