#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"
#include "kernels/walk.h"

namespace lowtide::reference {

LossRows::LossRows(const TensorRef& logits, const TensorRef& labels, const TensorRef& log_sum_exp,
                   const TensorRef& loss, const TensorRef& dlogits) {
  const int axis = logits.rank == 1 ? 0 : 1;
  classes = logits.sizes[axis];
  stride = logits.strides[axis];
  out_stride = dlogits.strides[axis];
  // Absent tensors have strides of 0; a loss that is one number has no dims.
  for (int i = 0, label = 0; i < logits.rank; ++i) {
    if (i == axis) continue;
    grid.add_dim(logits.sizes[i], {logits.strides[i], labels.strides[label], log_sum_exp.strides[label],
                                   loss.rank > label ? loss.strides[label] : 0, dlogits.strides[i]});
    ++label;
  }
}

namespace {

struct Options : LossTerms {
  const TensorRef* weight;
};

double weight_of(const Options& options, int64_t label) {
  return options.weight ? get(*options.weight, label * options.weight->strides[0]) : 1.0;
}

// False if a label is neither a class nor ignored.
bool labels_fit(const LossRows& rows, const TensorRef& labels, const Options& options) {
  bool good = true;
  rows.grid.for_each([&](int64_t, const auto& at) {
    const int64_t label = get_int(labels, at[1]);
    good &= label == options.ignore_index || (label >= 0 && label < rows.classes);
  });
  return good;
}

// What a mean divides by.
double total_weight(const LossRows& rows, const TensorRef& labels, const Options& options) {
  double total = 0;
  rows.grid.for_each([&](int64_t, const auto& at) {
    const int64_t label = get_int(labels, at[1]);
    if (label != options.ignore_index) total += weight_of(options, label);
  });
  return total;
}

constexpr const char* kBadLabel = "SoftmaxCrossEntropyLoss: a label is neither a class nor ignore_index";

}  // namespace

KernelStatus cross_entropy(const KernelCall& call, const RowsLoss& terms) {
  const TensorRef &logits = call.inputs[0], &labels = call.inputs[1];
  const TensorRef *loss = output(call, 0), *log_sum_exp = output(call, 1);
  const Options options{terms, input(call, 2)};
  const LossRows& rows = terms.rows;
  if (!labels_fit(rows, labels, options)) return kBadLabel;
  double total = 0;
  rows.grid.for_each([&](int64_t, const auto& at) {
    double largest = -kInfinity, sum = 0, weighted = 0;
    for (int64_t c = 0; c < rows.classes; ++c) largest = std::max(largest, get(logits, at[0] + c * rows.stride));
    for (int64_t c = 0; c < rows.classes; ++c) sum += std::exp(get(logits, at[0] + c * rows.stride) - largest);
    const double lse = largest + std::log(sum);
    if (log_sum_exp) set(*log_sum_exp, at[2], lse);
    const int64_t label = get_int(labels, at[1]);
    double row_loss = 0;
    if (label != options.ignore_index) {
      row_loss = (1 - options.smoothing) * weight_of(options, label) * (lse - get(logits, at[0] + label * rows.stride));
      if (options.smoothing > 0) {
        for (int64_t c = 0; c < rows.classes; ++c) {
          weighted += weight_of(options, c) * (lse - get(logits, at[0] + c * rows.stride));
        }
        row_loss += options.smoothing / static_cast<double>(rows.classes) * weighted;
      }
    }
    total += row_loss;
    if (loss && options.none) set(*loss, at[3], row_loss);
  });
  if (options.mean) total /= total_weight(rows, labels, options);
  if (loss && !options.none) set(*loss, 0, total);
  return nullptr;
}

KernelStatus cross_entropy_grad(const KernelCall& call, const RowsLossGrad& terms) {
  const TensorRef &dloss = call.inputs[0], &logits = call.inputs[1], &labels = call.inputs[2], &lse = call.inputs[3];
  const TensorRef& dlogits = call.outputs[0];
  const Options options{terms, input(call, 4)};
  const LossRows& rows = terms.rows;
  if (!labels_fit(rows, labels, options)) return kBadLabel;
  const double divisor = options.mean ? total_weight(rows, labels, options) : 1;
  const double spread = options.smoothing / static_cast<double>(rows.classes);
  double weights = 0;
  for (int64_t c = 0; c < rows.classes; ++c) weights += weight_of(options, c);
  parallel_for(rows.grid.numel(), 1, [&](int64_t begin, int64_t end) {
    rows.grid.for_each(begin, end, [&](int64_t, const auto& at) {
      const int64_t label = get_int(labels, at[1]);
      const bool ignored = label == options.ignore_index;
      const double scale = ignored ? 0 : get(dloss, at[3]) / divisor, log_sum = get(lse, at[2]);
      const double of_label = ignored ? 0 : (1 - options.smoothing) * weight_of(options, label);
      for (int64_t c = 0; c < rows.classes; ++c) {
        double slope = 0;
        if (!ignored) {
          const double p = std::exp(get(logits, at[0] + c * rows.stride) - log_sum);
          slope = of_label * (p - (c == label));
          if (options.smoothing > 0) slope += spread * (weights * p - weight_of(options, c));
        }
        set(dlogits, at[4] + c * rows.out_stride, ignored ? 0.0 : scale * slope);
      }
    });
  });
  return nullptr;
}

}  // namespace lowtide::reference
