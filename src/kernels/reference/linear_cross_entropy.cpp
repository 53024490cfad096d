// The logits of all rows as doubles in the scratch, then each sum as it is written.
#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"
#include "kernels/walk.h"

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

KernelStatus linear_cross_entropy_grad(const KernelCall& call, const LossTerms& terms) {
  const TensorRef &dloss = call.inputs[0], &logits = call.inputs[1], &labels = call.inputs[2], &lse = call.inputs[3],
                  &weight = call.inputs[4];
  const TensorRef *x = input(call, 5), *sent = input(call, 6);
  if (sent && sent->data == nullptr) sent = nullptr;
  const int64_t rows = logits.sizes[0], classes = logits.sizes[1];
  double* dz = static_cast<double*>(call.scratch);
  int64_t counted = 0;
  if (const KernelStatus status = count_labels(labels, classes, terms, counted)) return status;
  const double divisor = terms.mean ? static_cast<double>(counted) : 1, spread = terms.smoothing / double(classes);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t label = get_int(labels, r * labels.strides[0]);
    for (int64_t c = 0; c < classes; ++c) {
      const double target = spread + (c == label ? 1 - terms.smoothing : 0);
      const double slope = std::exp(at(logits, r, c) - get(lse, r * lse.strides[0])) - target;
      dz[r * classes + c] = label == terms.ignore_index ? 0 : get(dloss, 0) / divisor * slope;
      if (sent) dz[r * classes + c] += at(*sent, r, c);
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

}  // namespace lowtide::reference
