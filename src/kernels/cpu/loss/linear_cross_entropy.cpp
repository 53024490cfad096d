#include "kernels/cpu/loss/linear_cross_entropy.h"

#include "base/parallel.h"
#include "kernels/cpu/gemm/blocks.h"
#include "kernels/cpu/gemm/packed_gemm.h"

namespace lowtide::cpu {
namespace {

constexpr int64_t kLeastPanel = 256;
static_assert(kLossRows % kGemmDepth == 0 && kLossRows % kRowsPerBlock == 0 && kLeastPanel % kGemmDepth == 0);

// The gradients that are wanted; null: not this one.
struct Gradients {
  float *x, *weight, *bias;
  bool any() const { return x != nullptr || weight != nullptr || bias != nullptr; }
};

// The products of some rows of the layer and the classes [begin, begin + classes); without addresses for their sizes.
struct Panel {
  int64_t inner, rows, begin, classes;
  const float *x, *weight, *bias;  // x: of the first of the rows

  // z[rows, classes] = x W^T + bias
  Gemm logits(float* z) const {
    return {.m = rows,
            .n = classes,
            .k = inner,
            .transpose_b = true,
            .a = x,
            .a_stride = inner,
            .b = shifted(weight, begin * inner),
            .b_stride = inner,
            .c = z,
            .c_stride = classes,
            .bias = shifted(bias, begin)};
  }
  // Of dz. Rows a power of two apart would meet in cache.
  int64_t stride() const { return rounded_up(classes, 16) + 16; }
  // dx[rows, inner] += dz W; the first classes' is dx.
  Gemm input_gradient(const float* dz, float* dx) const {
    return {.m = rows,
            .n = inner,
            .k = classes,
            .beta = begin == 0 ? 0.0f : 1.0f,
            .a = dz,
            .a_stride = stride(),
            .b = shifted(weight, begin * inner),
            .b_stride = inner,
            .c = dx,
            .c_stride = inner};
  }
  // dW[classes, inner] += dz^T x; the first rows' is dW.
  Gemm weight_gradient(const float* dz, bool adds, float* dweight) const {
    return {.m = classes,
            .n = inner,
            .k = rows,
            .transpose_a = true,
            .beta = adds ? 1.0f : 0.0f,
            .a = dz,
            .a_stride = stride(),
            .b = x,
            .b_stride = inner,
            .c = shifted(dweight, begin * inner),
            .c_stride = inner};
  }

  int64_t gemm_bytes() const {
    int64_t most = 0;
    for (const Gemm& product :
         {logits(nullptr), input_gradient(nullptr, nullptr), weight_gradient(nullptr, false, nullptr)})
      most = std::max(most, packed_gemm_scratch_bytes(product, parallel_threads()));
    return most;
  }
};

// dbias[classes] += column sums of dz, by blocks of kRowsPerBlock.
void add_columns(const float* dz, int64_t stride, int64_t rows, int64_t classes, bool adds, float* dbias) {
  constexpr int64_t kColumns = 256;
  const auto sum_rows = reductions_table().sum_rows[kStoredF32];
  for_row_chunks((classes + kColumns - 1) / kColumns, kColumns * rows, 0.2, [&](int64_t group, int64_t count) {
    const int64_t begin = group * kColumns, cols = std::min(count * kColumns, classes - begin);
    if (!adds) std::fill(dbias + begin, dbias + begin + cols, 0.0f);
    for (int64_t r = 0; r < rows; r += kRowsPerBlock)
      sum_rows(dz + r * stride + begin, stride, dbias + begin, std::min(kRowsPerBlock, rows - r), cols, true);
  });
}

// Where logits of a panel, or what flows into them, lie: those of the first of the rows.
struct PanelLogits {
  const float* data;
  int64_t row_stride;
};

// What makes gradients of logits.
struct Products {
  const LinearLayerTerms& terms;
  const float *x, *weight, *bias;
  Gradients gradients;
  const float *lse, *dloss;
  float* dz;
  void* scratch;

  Panel panel(int64_t first, int64_t rows, int64_t begin, int64_t classes) const {
    return {terms.inner, rows, begin, classes, shifted(x, first * terms.inner), weight, bias};
  }
  void run(const Gemm& product) const { packed_gemm(product, scratch, terms.gemm_bytes); }

  // dz = dloss / divisor (exp(z - lse) - target), plus what else flows into the logits (without data: nothing).
  void fill(const Panel& panel, const Loss& loss, float divisor, int64_t first, const PanelLogits& z,
            const PanelLogits& sent) const {
    const float s = terms.smoothing, g = *dloss / divisor;
    for_row_chunks(panel.rows, panel.classes, 0.5, [&](int64_t begin, int64_t n) {
      for (int64_t i = begin; i < begin + n; ++i) {
        const int64_t r = first + i, label = loss.labels[r] - panel.begin;
        float* to = dz + i * panel.stride();
        if (loss.labels[r] == terms.ignore_index) {
          std::fill(to, to + panel.classes, 0.0f);
        } else {
          loss_table().grad(z.data + i * z.row_stride, to, panel.classes, lse[r], g,
                            g * s / static_cast<float>(terms.classes));
          if (label >= 0 && label < panel.classes) to[label] -= g * (1 - s);
        }
        if (sent.data == nullptr) continue;
        const float* added = sent.data + i * sent.row_stride;
        for (int64_t c = 0; c < panel.classes; ++c) to[c] += added[c];
      }
    });
  }
  // Of the rows from `first` on; dz is there.
  void add(const Panel& panel, int64_t first) const {
    const bool adds = first > 0;
    if (gradients.weight) run(panel.weight_gradient(dz, adds, gradients.weight));
    if (gradients.x) run(panel.input_gradient(dz, gradients.x + first * terms.inner));
    if (gradients.bias) add_columns(dz, panel.stride(), panel.rows, panel.classes, adds, gradients.bias + panel.begin);
  }
  // Where no block has written them.
  void clear() const {
    if (gradients.weight) std::fill(gradients.weight, gradients.weight + terms.classes * terms.inner, 0.0f);
    if (gradients.bias) std::fill(gradients.bias, gradients.bias + terms.classes, 0.0f);
  }
};

}  // namespace

LinearLayerTerms::LinearLayerTerms(const BoundCall& call, Rows logits, int64_t columns, int64_t block, int64_t other)
    : LossTerms(call, logits), inner(columns), dz_bytes(0), gemm_bytes(0) {
  for (int64_t at_a_time : {block, other}) {
    const Panel widest{inner, at_a_time, 0, panel(at_a_time), nullptr, nullptr, nullptr};
    dz_bytes = std::max(dz_bytes, aligned(at_a_time * widest.stride() * kFloatBytes));
    gemm_bytes = std::max(gemm_bytes, widest.gemm_bytes());
  }
}

// As wide as makes a panel's products four large blocks (blocks.h), as smaller ones pack more, but a quarter
// of the classes, so that few logits are there twice.
int64_t LinearLayerTerms::panel(int64_t block_rows) const {
  constexpr int64_t kLogits = int64_t{1} << 20;
  const int64_t wanted = std::min(kLogits / std::max<int64_t>(block_rows, 1), classes / 4) / kGemmDepth * kGemmDepth;
  return std::min(classes, std::max(wanted, kLeastPanel));
}

// ---- logits that nobody else reads

namespace {

// As many rows at a time as two thirds of the columns of W, or 1,024: the more, the less often W is packed and dW is
// gone through, and their logits are still less than dW.
int64_t block_rows(int64_t inner) {
  return std::clamp(inner * 2 / 3 / kLossRows * kLossRows, kLossRows, 4 * kLossRows);
}

// The first block, which dW has room for besides.
int64_t first_block_rows(const BoundCall& call) {
  const int64_t rows = call.inputs[0].sizes[0], inner = call.inputs[0].sizes[1];
  const int64_t room = call.outputs[2].present ? inner / kLossRows * kLossRows : 0;
  return std::min(rows, block_rows(inner) + room);
}

}  // namespace

LinearLossTerms::LinearLossTerms(const BoundCall& call)
    : LinearLayerTerms(call, {call.inputs[0].sizes[0], call.inputs[1].sizes[0]}, call.inputs[0].sizes[1],
                       first_block_rows(call), std::min(call.inputs[0].sizes[0], block_rows(call.inputs[0].sizes[1]))),
      first_block(first_block_rows(call)),
      block(std::min(rows, block_rows(inner))),
      wide_rows(std::min(first_block, std::max<int64_t>(16, dz_bytes / kFloatBytes / std::max<int64_t>(1, classes)))),
      wide_bytes(std::max(dz_bytes, aligned(wide_rows * classes * kFloatBytes))),
      row_bytes(aligned(2 * rows * kFloatBytes)),
      has_weight(call.outputs[2].present) {
  const int64_t others = rows > first_block ? places(first_block, block).rest() : 0;
  logit_bytes = aligned(std::max(places(0, first_block).rest(), others) * kFloatBytes);
}

const char* supports_linear_cross_entropy(const KernelQuery& query) {
  return query.inputs[0].dtype == DType::kF32 ? nullptr : "not f32";
}

int64_t linear_cross_entropy_scratch(const BoundCall& call) {
  const LinearLossTerms terms(call);
  return terms.logit_bytes + terms.wide_bytes + terms.row_bytes + terms.gemm_bytes;
}

KernelStatus linear_cross_entropy(const KernelCall& call, const LinearLossTerms& terms) {
  const Loss loss(terms, call.inputs[2]);
  if (loss.has_bad_label()) return kBadLabel;
  char* scratch = static_cast<char*>(call.scratch);
  float *rest = reinterpret_cast<float*>(scratch), *wide = rest + terms.logit_bytes / kFloatBytes,
        *lse = wide + terms.wide_bytes / kFloatBytes, *row_loss = lse + terms.rows;
  const float one = 1, divisor = loss.divisor();
  const Products products{terms,
                          input_floats(call, 0),
                          input_floats(call, 1),
                          input_floats(call, 3),
                          {output_floats(call, 1), output_floats(call, 2), output_floats(call, 3)},
                          lse,
                          &one,
                          wide,
                          scratch + terms.logit_bytes + terms.wide_bytes + terms.row_bytes};
  if (terms.rows == 0) products.clear();
  for (int64_t first = 0, rows = terms.first_block; first < terms.rows; first += rows, rows = terms.block) {
    rows = std::min(rows, terms.rows - first);
    const LogitPanels places = terms.places(first, rows);
    const auto place = [&](int64_t p) {
      TensorRef panel;
      panel.data = (places.is_in_gradient(p) ? products.gradients.weight : rest) + places.offset(p);
      return panel;
    };
    const auto panel = [&](int64_t p) { return products.panel(first, rows, p * places.panel, places.width(p)); };
    for (int64_t p = 0; p < places.count(); ++p) products.run(panel(p).logits(place(p).as<float>()));
    forward_of_panels(loss, places, place, first, rows, terms.wide_rows, wide, row_loss, lse);
    for (int64_t p = 0; p < places.count() && products.gradients.any(); ++p) {
      products.fill(panel(p), loss, divisor, first, {place(p).as<const float>(), places.width(p)}, {});
      products.add(panel(p), first);
    }
  }
  if (float* result = output_floats(call, 0)) *result = loss.reduced(row_loss);
  return nullptr;
}

// ---- logits that are there

namespace {
constexpr int64_t kGradRows = 1024;
}

LinearLossGradTerms::LinearLossGradTerms(const BoundCall& call)
    : LinearLayerTerms(call, rows_of(call.inputs[1]), call.inputs[4].sizes[1],
                       std::min(kGradRows, rows_of(call.inputs[1]).rows),
                       std::min(kGradRows, rows_of(call.inputs[1]).rows)),
      block(std::min(kGradRows, rows)) {}

const char* supports_linear_cross_entropy_grad(const KernelQuery& query) {
  return query.inputs[1].dtype == DType::kF32 && !query.attrs->has("computes") ? nullptr : "not f32";
}

int64_t linear_cross_entropy_grad_scratch(const BoundCall& call) {
  const LinearLossGradTerms terms(call);
  return terms.dz_bytes + terms.gemm_bytes;
}

KernelStatus linear_cross_entropy_grad(const KernelCall& call, const LinearLossGradTerms& terms) {
  const Loss loss(terms, call.inputs[2]);
  if (loss.has_bad_label()) return kBadLabel;
  char* scratch = static_cast<char*>(call.scratch);
  const float *logits = input_floats(call, 1), *sent = input_floats(call, 6), divisor = loss.divisor();
  const Products products{terms,
                          input_floats(call, 5),
                          input_floats(call, 4),
                          nullptr,
                          {output_floats(call, 0), output_floats(call, 1), output_floats(call, 2)},
                          input_floats(call, 3),
                          input_floats(call, 0),
                          reinterpret_cast<float*>(scratch),
                          scratch + terms.dz_bytes};
  if (terms.rows == 0) products.clear();
  // Panel by panel: a panel's part of dW stays in cache while the rows go by.
  const int64_t classes = terms.panel(terms.block);
  for (int64_t begin = 0; begin < terms.classes; begin += classes) {
    for (int64_t first = 0; first < terms.rows; first += terms.block) {
      const Panel panel = products.panel(first, std::min(terms.block, terms.rows - first), begin,
                                         std::min(classes, terms.classes - begin));
      const int64_t at = first * terms.classes + begin;
      products.fill(panel, loss, divisor, first, {logits + at, terms.classes}, {shifted(sent, at), terms.classes});
      products.add(panel, first);
    }
  }
  return nullptr;
}

}  // namespace lowtide::cpu
