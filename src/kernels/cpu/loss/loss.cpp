// Cross entropy of logits [rows, classes], keeping one log-sum-exp a row and no probabilities. bf16 and f16 logits are
// widened into scratch a block of rows at a time, so that an f32 copy of the logits, often the largest tensor of a
// step, is never there.
#include "kernels/cpu/copy/copy_table.h"
#include "kernels/cpu/loss/class_weights.h"
#include "kernels/cpu/loss/ctc_loss.h"
#include "kernels/cpu/loss/double_cross_entropy.h"
#include "kernels/cpu/loss/half_linear_cross_entropy.h"
#include "kernels/cpu/loss/linear_cross_entropy.h"
#include "kernels/cpu/loss/loss_rows.h"
#include "kernels/cpu/loss/pixel_cross_entropy.h"
#include "kernels/kernel_lines.h"
#include "kernels/rooms.h"

namespace lowtide::cpu {
namespace {

struct LossGradTerms : LossTerms {
  explicit LossGradTerms(const BoundCall& call) : LossTerms(call, 1) {}
};

const char* supports(const KernelQuery& query, bool (*takes)(DType), const char* otherwise, bool images = false) {
  const size_t logits = query.op == Op::kSoftmaxCrossEntropyLoss ? 0 : 1;
  if (const size_t weights = logits * 2 + 2; query.inputs.size() > weights && query.inputs[weights].present) {
    if (query.inputs[weights].dtype != DType::kF32 && !is_half(query.inputs[weights].dtype))
      return "class weights that are neither f32, bf16 nor f16";
  }
  if (query.inputs[logits].rank > 2 && !images) return "classes are not the last dim";
  if (query.inputs[logits].rank <= 2 && images) return "not images";
  if (!takes(query.inputs[logits].dtype)) return otherwise;
  if (query.inputs[logits + 1].dtype != DType::kI64) return "labels are not i64";
  return nullptr;
}

// ---- f32

const char* supports_cross_entropy(const KernelQuery& query) {
  if (query.inputs[0].dtype != DType::kF32) return "not f32";
  return supports(query, [](DType dtype) { return dtype == DType::kF32; }, "not f32");
}

// Losses and log-sum-exps of the rows, where they are not wanted.
int64_t cross_entropy_scratch(const BoundCall& call) {
  return (2 * rows_of(call.inputs[0]).rows + class_weights_floats(call, 2)) * kFloatBytes;
}
int64_t cross_entropy_grad_scratch(const BoundCall& call) { return class_weights_floats(call, 4) * kFloatBytes; }

KernelStatus cross_entropy(const KernelCall& call, const LossTerms& terms) {
  const Loss loss(terms, call.inputs[1], class_weights(call, 2, terms.classes));
  if (loss.has_bad_label()) return kBadLabel;
  float* spare = static_cast<float*>(call.scratch);
  float *result = output_floats(call, 0), *lse = output_floats(call, 1);
  float* row_loss = loss.whole || !result ? spare : result;
  loss.forward(input_floats(call, 0), 0, loss.rows, row_loss, lse ? lse : spare + loss.rows);
  if (loss.whole && result) *result = loss.reduced(row_loss);
  return nullptr;
}

KernelStatus cross_entropy_grad(const KernelCall& call, const LossGradTerms& terms) {
  const Loss loss(terms, call.inputs[2], class_weights(call, 4, terms.classes));
  if (loss.has_bad_label()) return kBadLabel;
  loss.backward(input_floats(call, 1), 0, loss.rows, input_floats(call, 3), input_floats(call, 0),
                output_floats(call, 0));
  return nullptr;
}

// ---- bf16, f16

const char* supports_half_logits(const KernelQuery& query) { return supports(query, is_half, "neither bf16 nor f16"); }

void widen(const TensorRef& logits, const Loss& loss, int64_t first, int64_t count, float* to) {
  const auto loop = logits.dtype == DType::kBF16 ? copy_table().bf16_to_f32 : copy_table().f16_to_f32;
  parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    loop(logits.as<uint16_t>() + (first + begin) * loss.classes, to + begin * loss.classes,
         (end - begin) * loss.classes);
  });
}
void narrow(const float* from, const Loss& loss, int64_t first, int64_t count, const TensorRef& to) {
  const auto loop = to.dtype == DType::kBF16 ? copy_table().f32_to_bf16 : copy_table().f32_to_f16;
  parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    loop(from + begin * loss.classes, to.as<uint16_t>() + (first + begin) * loss.classes, (end - begin) * loss.classes);
  });
}

int64_t half_logits_scratch(const BoundCall& call) {
  const Rows logits = rows_of(call.inputs[0]);
  return (loss_block_floats(logits) + 2 * logits.rows + class_weights_floats(call, 2)) * kFloatBytes;
}

KernelStatus cross_entropy_of_half(const KernelCall& call, const LossTerms& terms) {
  const Loss loss(terms, call.inputs[1], class_weights(call, 2, terms.classes));
  if (loss.has_bad_label()) return kBadLabel;
  const int64_t block = loss_block_rows({terms.rows, terms.classes});
  float* wide = static_cast<float*>(call.scratch);
  float* spare = wide + loss_block_floats({terms.rows, terms.classes});
  float *result = output_floats(call, 0), *lse = output_floats(call, 1);
  float* row_loss = loss.whole || !result ? spare : result;
  for (int64_t first = 0; first < loss.rows; first += block) {
    const int64_t count = std::min(block, loss.rows - first);
    widen(call.inputs[0], loss, first, count, wide);
    loss.forward(wide, first, count, row_loss, lse ? lse : spare + loss.rows);
  }
  if (loss.whole && result) *result = loss.reduced(row_loss);
  return nullptr;
}

int64_t half_logits_grad_scratch(const BoundCall& call) {
  return (loss_block_floats(rows_of(call.inputs[1])) + class_weights_floats(call, 4)) * kFloatBytes;
}

KernelStatus cross_entropy_grad_of_half(const KernelCall& call, const LossGradTerms& terms) {
  const Loss loss(terms, call.inputs[2], class_weights(call, 4, terms.classes));
  if (loss.has_bad_label()) return kBadLabel;
  const int64_t block = loss_block_rows({terms.rows, terms.classes});
  float* wide = static_cast<float*>(call.scratch);
  for (int64_t first = 0; first < loss.rows; first += block) {
    const int64_t count = std::min(block, loss.rows - first);
    widen(call.inputs[1], loss, first, count, wide);
    loss.backward(wide, first, count, input_floats(call, 3), input_floats(call, 0), wide);
    narrow(wide, loss, first, count, call.outputs[0]);
  }
  return nullptr;
}

// ---- images, [N, classes, ...]

const char* supports_pixels(const KernelQuery& query) {
  return supports(
      query, [](DType dtype) { return dtype == DType::kF32 || is_half(dtype); }, "neither f32, bf16 nor f16", true);
}

}  // namespace

std::span<const Kernel> loss_kernels() {
  static constexpr Kernel kernels[] = {
#include "kernels/cpu/loss/list.inc"
  };
  return kernels;
}

}  // namespace lowtide::cpu
