#include "kernels/cpu/loss/double_cross_entropy.h"

#include "kernels/cpu/softmax/double_rows_table.h"

namespace lowtide::cpu {
namespace {

constexpr int64_t kDoubleBytes = 8;

double rows_that_count(const Loss& loss) {
  return static_cast<double>(loss.rows - std::count(loss.labels, loss.labels + loss.rows, loss.ignore_index));
}

double* doubles_of(const TensorRef& tensor) { return tensor.present ? tensor.as<double>() : nullptr; }

}  // namespace

const char* supports_double_cross_entropy(const KernelQuery& query) {
  const size_t logits = query.op == Op::kSoftmaxCrossEntropyLoss ? 0 : 1, weights = logits * 2 + 2;
  if (query.inputs.size() > weights && query.inputs[weights].present) return "class weights";
  if (query.attrs->f("label_smoothing") != 0) return "smoothed labels";
  if (query.inputs[logits].rank > 2) return "classes are not the last dim";
  if (query.inputs[logits].dtype != DType::kF64) return "not f64";
  return query.inputs[logits + 1].dtype == DType::kI64 ? nullptr : "labels are not i64";
}

// Losses of the rows, and their log-sum-exps where they are not wanted.
int64_t double_cross_entropy_scratch(const BoundCall& call) { return 2 * rows_of(call.inputs[0]).rows * kDoubleBytes; }

KernelStatus double_cross_entropy(const KernelCall& call, const LossTerms& terms) {
  const Loss loss(terms, call.inputs[1]);
  if (loss.has_bad_label()) return kBadLabel;
  const double* x = call.inputs[0].as<double>();
  double* spare = static_cast<double*>(call.scratch);
  double *result = doubles_of(call.outputs[0]), *lse = call.outputs.size() > 1 ? doubles_of(call.outputs[1]) : nullptr;
  double* row_loss = loss.whole || result == nullptr ? spare : result;
  if (lse == nullptr) lse = spare + loss.rows;
  for_row_chunks(loss.rows, loss.classes, 2, [&](int64_t begin, int64_t count) {
    for (int64_t r = begin; r < begin + count; ++r) {
      const double* row = x + r * loss.classes;
      lse[r] = double_rows_table().log_sum_exp(row, loss.classes);
      row_loss[r] = loss.labels[r] == loss.ignore_index ? 0 : lse[r] - row[loss.labels[r]];
    }
  });
  if (!loss.whole || result == nullptr) return nullptr;
  const double total = std::accumulate(row_loss, row_loss + loss.rows, 0.0);
  *result = loss.mean ? total / rows_that_count(loss) : total;
  return nullptr;
}

KernelStatus double_cross_entropy_grad(const KernelCall& call, const DoubleLossGrad& terms) {
  const Loss loss(terms, call.inputs[2]);
  if (loss.has_bad_label()) return kBadLabel;
  const double *dloss = call.inputs[0].as<double>(), *x = call.inputs[1].as<double>(),
               *lse = call.inputs[3].as<double>();
  double* dx = call.outputs[0].as<double>();
  const double shared = !loss.whole ? 1 : loss.mean ? *dloss / rows_that_count(loss) : *dloss;
  for_row_chunks(loss.rows, loss.classes, 2, [&](int64_t begin, int64_t count) {
    for (int64_t r = begin; r < begin + count; ++r) {
      double* to = dx + r * loss.classes;
      if (loss.labels[r] == loss.ignore_index) {
        std::fill(to, to + loss.classes, 0.0);
        continue;
      }
      const double g = loss.whole ? shared : dloss[r];
      double_rows_table().scaled_exp(x + r * loss.classes, to, loss.classes, lse[r], g);
      to[loss.labels[r]] -= g;
    }
  });
  return nullptr;
}

}  // namespace lowtide::cpu
