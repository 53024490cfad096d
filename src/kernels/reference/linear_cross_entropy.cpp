// The logits of all rows as doubles in the scratch, then each sum as it is written.
#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"
#include "kernels/walk.h"
#include "opset/logit_panels.h"

namespace lowtide::reference {

namespace {

double at(const TensorRef& matrix, int64_t row, int64_t col) {
  return get(matrix, row * matrix.strides[0] + col * matrix.strides[1]);
}

// Sums over k in order; y may be absent.
template <class Term>
void set_sums(const TensorRef* y, int64_t rows, int64_t cols, int64_t terms, Term term) {
  if (!y) return;
  parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t c = 0; c < cols; ++c) {
        double sum = 0;
        for (int64_t k = 0; k < terms; ++k) sum += term(r, c, k);
        set(*y, y->rank == 1 ? c * y->strides[0] : r * y->strides[0] + c * y->strides[1], sum);
      }
  });
}

// How many rows count; an error if a label is neither a class nor ignored.
KernelStatus count_labels(const TensorRef& labels, int64_t classes, const LossTerms& terms, int64_t& counted) {
  for (int64_t r = 0; r < labels.sizes[0]; ++r) {
    const int64_t label = get_int(labels, r * labels.strides[0]);
    if (label == terms.ignore_index) continue;
    if (label < 0 || label >= classes) return "SoftmaxCrossEntropyLoss: a label is neither a class nor ignore_index";
    ++counted;
  }
  return nullptr;
}

}  // namespace

int64_t linear_cross_entropy_scratch(const BoundCall& call) {
  return call.inputs[0].sizes[0] * call.inputs[1].sizes[0] * static_cast<int64_t>(sizeof(double));
}

KernelStatus linear_cross_entropy(const KernelCall& call, const LossTerms& terms) {
  const TensorRef &x = call.inputs[0], &weight = call.inputs[1], &labels = call.inputs[2], *bias = input(call, 3);
  const int64_t rows = x.sizes[0], inner = x.sizes[1], classes = weight.sizes[0];
  double* z = static_cast<double*>(call.scratch);
  int64_t counted = 0;
  if (const KernelStatus status = count_labels(labels, classes, terms, counted)) return status;
  const double divisor = terms.mean ? static_cast<double>(counted) : 1, spread = terms.smoothing / double(classes);

  double total = 0;
  for (int64_t r = 0; r < rows; ++r) {
    double* row = z + r * classes;
    double largest = -kInfinity, sum = 0;
    for (int64_t c = 0; c < classes; ++c) {
      row[c] = bias ? get(*bias, c * bias->strides[0]) : 0;
      for (int64_t k = 0; k < inner; ++k) row[c] += at(x, r, k) * at(weight, c, k);
      largest = std::max(largest, row[c]);
    }
    for (int64_t c = 0; c < classes; ++c) sum += std::exp(row[c] - largest);
    const double lse = largest + std::log(sum);
    const int64_t label = get_int(labels, r * labels.strides[0]);
    const bool ignored = label == terms.ignore_index;
    // From logits to their gradient.
    for (int64_t c = 0; c < classes; ++c) {
      const double target = spread + (c == label ? 1 - terms.smoothing : 0);
      if (!ignored && target != 0) total += target * (lse - row[c]);
      row[c] = ignored ? 0 : (std::exp(row[c] - lse) - target) / divisor;
    }
  }
  if (const TensorRef* loss = output(call, 0)) set(*loss, 0, total / divisor);
  set_sums(output(call, 1), rows, inner, classes,
           [&](int64_t r, int64_t k, int64_t c) { return z[r * classes + c] * at(weight, c, k); });
  set_sums(output(call, 2), classes, inner, rows,
           [&](int64_t c, int64_t k, int64_t r) { return z[r * classes + c] * at(x, r, k); });
  set_sums(output(call, 3), 1, classes, rows, [&](int64_t, int64_t c, int64_t r) { return z[r * classes + c]; });
  return nullptr;
}

// The gradient of the logits of all rows as doubles in the scratch.
int64_t linear_cross_entropy_grad_scratch(const BoundCall& call) {
  return call.inputs[1].numel() * static_cast<int64_t>(sizeof(double));
}

namespace {

// logit(r, c) and sent(r, c): numbers of the logits, and of what else flows into them.
template <class Logit, class Sent>
KernelStatus set_gradients(const KernelCall& call, const LossTerms& terms, int64_t rows, int64_t classes, Logit logit,
                           Sent sent) {
  const TensorRef &dloss = call.inputs[0], &labels = call.inputs[2], &lse = call.inputs[3], &weight = call.inputs[4];
  const TensorRef* x = input(call, 5);
  double* dz = static_cast<double*>(call.scratch);
  int64_t counted = 0;
  if (const KernelStatus status = count_labels(labels, classes, terms, counted)) return status;
  const double divisor = terms.mean ? static_cast<double>(counted) : 1, spread = terms.smoothing / double(classes);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t label = get_int(labels, r * labels.strides[0]);
    for (int64_t c = 0; c < classes; ++c) {
      const double target = spread + (c == label ? 1 - terms.smoothing : 0);
      const double slope = std::exp(logit(r, c) - get(lse, r * lse.strides[0])) - target;
      dz[r * classes + c] = (label == terms.ignore_index ? 0 : get(dloss, 0) / divisor * slope) + sent(r, c);
    }
  }
  const int64_t inner = weight.sizes[1];
  set_sums(output(call, 0), rows, inner, classes,
           [&](int64_t r, int64_t k, int64_t c) { return dz[r * classes + c] * at(weight, c, k); });
  set_sums(output(call, 1), classes, inner, rows,
           [&](int64_t c, int64_t k, int64_t r) { return dz[r * classes + c] * at(*x, r, k); });
  set_sums(output(call, 2), 1, classes, rows, [&](int64_t, int64_t c, int64_t r) { return dz[r * classes + c]; });
  return nullptr;
}

// Where logits are kept in panels, head in place of the gradient of weight.
struct KeptLogits {
  KeptLogits(const TensorRef& head, const TensorRef& rest, int64_t rows)
      : head(head),
        rest(rest),
        panels(rows, head.sizes[0], head.sizes[1] * size_bytes(head.dtype) / size_bytes(rest.dtype)) {
    this->head.dtype = rest.dtype;
  }
  const TensorRef& tensor(int64_t c) const { return panels.is_in_gradient(c / kLogitPanel) ? head : rest; }
  int64_t offset(int64_t r, int64_t c) const {
    const int64_t p = c / kLogitPanel;
    return panels.offset(p) + r * panels.width(p) + c % kLogitPanel;
  }
  TensorRef head, rest;
  LogitPanels panels;
};

}  // namespace

KernelStatus linear_cross_entropy_grad(const KernelCall& call, const LossTerms& terms) {
  const TensorRef &logits = call.inputs[1], *sent = input(call, 6);
  if (sent && sent->data == nullptr) sent = nullptr;
  return set_gradients(
      call, terms, logits.sizes[0], logits.sizes[1], [&](int64_t r, int64_t c) { return at(logits, r, c); },
      [&](int64_t r, int64_t c) { return sent ? at(*sent, r, c) : 0; });
}

int64_t panel_linear_cross_entropy_grad_scratch(const BoundCall& call) {
  return call.inputs[5].sizes[0] * call.inputs[4].sizes[0] * static_cast<int64_t>(sizeof(double));
}

KernelStatus panel_linear_cross_entropy_grad(const KernelCall& call, const LossTerms& terms) {
  const int64_t rows = call.inputs[5].sizes[0], classes = call.inputs[4].sizes[0];
  const KeptLogits kept(call.inputs[1], call.inputs[6], rows);
  return set_gradients(
      call, terms, rows, classes, [&](int64_t r, int64_t c) { return get(kept.tensor(c), kept.offset(r, c)); },
      [](int64_t, int64_t) { return 0.0; });
}

KernelStatus panel_linear_cross_entropy(const KernelCall& call, const LossTerms& terms) {
  const TensorRef &x = call.inputs[0], &weight = call.inputs[1], &labels = call.inputs[2], *bias = input(call, 3);
  const int64_t rows = x.sizes[0], inner = x.sizes[1], classes = weight.sizes[0];
  int64_t counted = 0;
  if (const KernelStatus status = count_labels(labels, classes, terms, counted)) return status;
  const KeptLogits kept(call.outputs[2], call.outputs[3], rows);
  const DType dtype = call.outputs[3].dtype;
  const auto read = [&](const TensorRef& matrix, int64_t r, int64_t c) { return rounded(dtype, at(matrix, r, c)); };
  double total = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const auto logit = [&](int64_t c) { return get(kept.tensor(c), kept.offset(r, c)); };
    double largest = -kInfinity, sum = 0, of_logits = 0;
    for (int64_t c = 0; c < classes; ++c) {
      double product = bias ? rounded(dtype, get(*bias, c * bias->strides[0])) : 0;
      for (int64_t k = 0; k < inner; ++k) product += read(x, r, k) * read(weight, c, k);
      set(kept.tensor(c), kept.offset(r, c), product);
      largest = std::max(largest, logit(c));
      of_logits += logit(c);
    }
    for (int64_t c = 0; c < classes; ++c) sum += std::exp(logit(c) - largest);
    const double lse = largest + std::log(sum);
    if (const TensorRef* to = output(call, 1)) set(*to, r, lse);
    const int64_t label = get_int(labels, r * labels.strides[0]);
    if (label == terms.ignore_index) continue;
    total += (1 - terms.smoothing) * (lse - logit(label));
    if (terms.smoothing != 0) total += terms.smoothing * (lse - of_logits / double(classes));
  }
  if (const TensorRef* loss = output(call, 0)) set(*loss, 0, total / (terms.mean ? static_cast<double>(counted) : 1));
  return nullptr;
}

}  // namespace lowtide::reference
