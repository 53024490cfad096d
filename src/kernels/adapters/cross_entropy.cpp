// Cross entropy of f32 logits [rows, classes], and of bf16 and f16 ones: a block of their rows at a time is widened
// into scratch, so that an f32 copy of the logits, often the largest tensor of a step, is never there.
#include "kernels/cpu/cross_entropy.h"

#include "base/parallel.h"
#include "kernels/adapters/list.h"
#include "kernels/adapters/strided.h"
#include "kernels/cpu/copy_table.h"

namespace lowtide::adapters {

namespace {

struct LossRows {
  int64_t rows, classes;
};
LossRows loss_rows(const TensorRef& logits) {
  return logits.rank == 1 ? LossRows{1, logits.sizes[0]} : LossRows{logits.sizes[0], logits.sizes[1]};
}

cpu::CrossEntropyOptions loss_options(const KernelCall& call) {
  return {call.attrs->i("ignore_index"), static_cast<float>(call.attrs->f("label_smoothing"))};
}
cpu::LossReduction reduction_of(const KernelCall& call) {
  return call.attrs->s("reduction") == "mean" ? cpu::LossReduction::kMean : cpu::LossReduction::kSum;
}
constexpr const char* kBadLabel = "SoftmaxCrossEntropyLoss: a label is neither a class nor ignore_index";

constexpr int64_t kBlock = 64;  // rows: enough for every thread, 13 MB at GPT-2's 50,257 classes

struct HalfLogits {
  const TensorRef& tensor;
  int64_t rows, classes;

  explicit HalfLogits(const TensorRef& logits)
      : tensor(logits), rows(loss_rows(logits).rows), classes(loss_rows(logits).classes) {}
  int64_t block() const { return std::min(rows, kBlock); }
  void widen(int64_t first, int64_t count, float* to) const {
    const auto loop = tensor.dtype == DType::kBF16 ? cpu::copy_table().bf16_to_f32 : cpu::copy_table().f16_to_f32;
    parallel_for(count, 1, [&](int64_t begin, int64_t end) {
      loop(tensor.as<uint16_t>() + (first + begin) * classes, to + begin * classes, (end - begin) * classes);
    });
  }
  void narrow(int64_t first, int64_t count, const float* from, const TensorRef& to) const {
    const auto loop = to.dtype == DType::kBF16 ? cpu::copy_table().f32_to_bf16 : cpu::copy_table().f32_to_f16;
    parallel_for(count, 1, [&](int64_t begin, int64_t end) {
      loop(from + begin * classes, to.as<uint16_t>() + (first + begin) * classes, (end - begin) * classes);
    });
  }
};

}  // namespace

const char* supports_cross_entropy(const KernelQuery& query) {
  const size_t logits = query.op == Op::kSoftmaxCrossEntropyLoss ? 0 : 1;
  if (query.inputs.size() > logits * 2 + 2 && query.inputs[logits * 2 + 2].present) return "class weights";
  if (query.inputs[logits].rank > 2) return "classes are not the last dim";
  if (query.inputs[logits].dtype != DType::kF32 || query.inputs[0].dtype != DType::kF32) return "not f32";
  if (query.inputs[logits + 1].dtype != DType::kI64) return "labels are not i64";
  return nullptr;
}

int64_t cross_entropy_scratch(const KernelCall& call) { return 2 * loss_rows(call.inputs[0]).rows * 4; }

KernelStatus cross_entropy(const KernelCall& call) {
  const auto [rows, classes] = loss_rows(call.inputs[0]);
  const int64_t* labels = call.inputs[1].as<int64_t>();
  const cpu::CrossEntropyOptions options = loss_options(call);
  if (cpu::first_bad_label(labels, rows, classes, options.ignore_index) >= 0) return kBadLabel;
  float* spare = static_cast<float*>(call.scratch);
  const TensorRef *loss = output(call, 0), *lse = output(call, 1);
  const bool whole = call.attrs->s("reduction") != "none";
  float* row_loss = whole || !loss ? spare : loss->as<float>();
  cpu::cross_entropy(call.inputs[0].as<float>(), labels, options, row_loss, lse ? lse->as<float>() : spare + rows, rows,
                     classes);
  if (whole && loss)
    *loss->as<float>() = cpu::reduce_loss(reduction_of(call), row_loss, labels, options.ignore_index, rows);
  return nullptr;
}

KernelStatus cross_entropy_grad(const KernelCall& call) {
  const auto [rows, classes] = loss_rows(call.inputs[1]);
  const int64_t* labels = call.inputs[2].as<int64_t>();
  const cpu::CrossEntropyOptions options = loss_options(call);
  if (cpu::first_bad_label(labels, rows, classes, options.ignore_index) >= 0) return kBadLabel;
  const bool whole = call.attrs->s("reduction") != "none";
  const float* dloss = call.inputs[0].as<float>();
  const float scale = whole ? *dloss / cpu::loss_divisor(reduction_of(call), labels, options.ignore_index, rows) : 1.0f;
  cpu::cross_entropy_grad(call.inputs[1].as<float>(), labels, options, call.inputs[3].as<float>(),
                          whole ? nullptr : dloss, scale, output(call, 0)->as<float>(), rows, classes);
  return nullptr;
}

const char* supports_half_logits(const KernelQuery& query) {
  const size_t logits = query.op == Op::kSoftmaxCrossEntropyLoss ? 0 : 1;
  if (query.inputs.size() > logits * 2 + 2 && query.inputs[logits * 2 + 2].present) return "class weights";
  if (query.inputs[logits].rank > 2) return "classes are not the last dim";
  if (!is_half(query.inputs[logits].dtype)) return "neither bf16 nor f16";
  if (query.inputs[logits + 1].dtype != DType::kI64) return "labels are not i64";
  return nullptr;
}

int64_t half_logits_scratch(const KernelCall& call) {
  const HalfLogits logits(call.inputs[0]);
  return (logits.block() * logits.classes + 2 * logits.rows) * 4;
}

int64_t half_logits_grad_scratch(const KernelCall& call) {
  const HalfLogits logits(call.inputs[1]);
  return logits.block() * logits.classes * 4;
}

KernelStatus cross_entropy_of_half(const KernelCall& call) {
  const HalfLogits logits(call.inputs[0]);
  const int64_t* labels = call.inputs[1].as<int64_t>();
  const cpu::CrossEntropyOptions options = loss_options(call);
  if (cpu::first_bad_label(labels, logits.rows, logits.classes, options.ignore_index) >= 0) return kBadLabel;
  float* wide = static_cast<float*>(call.scratch);
  float* spare = wide + logits.block() * logits.classes;
  const TensorRef *loss = output(call, 0), *log_sum_exp = output(call, 1);
  const bool whole = call.attrs->s("reduction") != "none";
  float* row_loss = whole || !loss ? spare : loss->as<float>();
  float* lse = log_sum_exp ? log_sum_exp->as<float>() : spare + logits.rows;
  for (int64_t first = 0; first < logits.rows; first += kBlock) {
    const int64_t count = std::min(kBlock, logits.rows - first);
    logits.widen(first, count, wide);
    cpu::cross_entropy(wide, labels + first, options, row_loss + first, lse + first, count, logits.classes);
  }
  if (whole && loss)
    *loss->as<float>() = cpu::reduce_loss(reduction_of(call), row_loss, labels, options.ignore_index, logits.rows);
  return nullptr;
}

KernelStatus cross_entropy_grad_of_half(const KernelCall& call) {
  const HalfLogits logits(call.inputs[1]);
  const int64_t* labels = call.inputs[2].as<int64_t>();
  const cpu::CrossEntropyOptions options = loss_options(call);
  if (cpu::first_bad_label(labels, logits.rows, logits.classes, options.ignore_index) >= 0) return kBadLabel;
  const bool whole = call.attrs->s("reduction") != "none";
  const float *dloss = call.inputs[0].as<float>(), *lse = call.inputs[3].as<float>();
  const float scale =
      whole ? *dloss / cpu::loss_divisor(reduction_of(call), labels, options.ignore_index, logits.rows) : 1.0f;
  float* wide = static_cast<float*>(call.scratch);
  for (int64_t first = 0; first < logits.rows; first += kBlock) {
    const int64_t count = std::min(kBlock, logits.rows - first);
    logits.widen(first, count, wide);
    cpu::cross_entropy_grad(wide, labels + first, options, lse + first, whole ? nullptr : dloss + first, scale, wide,
                            count, logits.classes);
    logits.narrow(first, count, wide, call.outputs[0]);
  }
  return nullptr;
}

}  // namespace lowtide::adapters
