#include "kernels/cpu/loss/pixel_cross_entropy.h"

#include "kernels/cpu/float_runs.h"
#include "kernels/cpu/loss/class_weights.h"
#include "kernels/task_slots.h"

namespace lowtide::cpu {

namespace {

// Of the classes of a run, which stay in L2 between the passes over them.
constexpr int64_t kRunFloats = 1 << 16;

// A run of positions as floats, `stride` from one class to the next.
struct Planes {
  float* x;
  int64_t stride;
};

// Room of a task: its logits as floats, where they are not, then numbers of its positions.
struct Slot {
  Slot(const PixelTerms& terms, const TensorRef& logits)
      : widened(logits.dtype == DType::kF32 ? 0 : terms.run * terms.classes), floats(widened + 3 * terms.run) {}
  int64_t widened, floats;
};

// The task's images and positions: run `task` begins at `first` of image `image` and has n.
struct PixelRun {
  PixelRun(const PixelTerms& terms, int64_t task) {
    const int64_t in_image = terms.runs / (terms.rows / terms.inner);
    image = task / in_image;
    first = task % in_image * terms.run;
    n = std::min(terms.run, terms.inner - first);
    row = image * terms.inner + first;
  }
  int64_t offset(const PixelTerms& terms, int64_t c) const { return (image * terms.classes + c) * terms.inner + first; }

  Planes read(const PixelTerms& terms, const TensorRef& logits, float* room) const {
    if (logits.dtype == DType::kF32) return {logits.as<float>() + offset(terms, 0), terms.inner};
    for (int64_t c = 0; c < terms.classes; ++c) cpu::read(logits, offset(terms, c), 1, n, room + c * n);
    return {room, n};
  }

  int64_t image, first, n;
  int64_t row;  // of the first position
};

bool is_small(const PixelTerms& terms) { return terms.rows * terms.classes < 16384; }

}  // namespace

PixelTerms::PixelTerms(const BoundCall& call, size_t logits)
    : LossTerms(call, logits),
      inner(std::max<int64_t>(1, product_of_sizes(call.inputs[logits], 2, call.inputs[logits].rank))),
      run(std::clamp<int64_t>(kRunFloats / std::max<int64_t>(1, classes), 64, kRun)) {
  run = std::min(run, inner);
  runs = rows / inner * ((inner + run - 1) / run);
}

// For each thread's slot; the losses and log-sum-exps of all positions; weights of classes.
int64_t pixel_cross_entropy_scratch(const BoundCall& call) {
  const PixelLossTerms terms(call);
  const Slot slot(terms, call.inputs[0]);
  return (2 * terms.rows + parallel_threads() * slot.floats + class_weights_floats(call, 2)) * kFloatBytes;
}

KernelStatus pixel_cross_entropy(const KernelCall& call, const PixelLossTerms& terms) {
  const float* weights = class_weights(call, 2, terms.classes);
  const Loss loss(terms, call.inputs[1], weights);
  if (loss.has_bad_label()) return kBadLabel;
  const TensorRef *result = output(call, 0), *lse = output(call, 1);
  float* losses = static_cast<float*>(call.scratch);
  float* sums = lse != nullptr && lse->dtype == DType::kF32 ? lse->as<float>() : losses + terms.rows;
  float* slots = losses + 2 * terms.rows;
  const Slot slot(terms, call.inputs[0]);
  const int64_t slot_bytes = call.scratch_bytes - 2 * terms.rows * kFloatBytes - class_weights_bytes(call, 2);
  const float s = terms.smoothing;
  run_tasks(terms.runs, slot.floats, slots, slot_bytes, is_small(terms), [&](int64_t task, float* own) {
    const PixelRun run(terms, task);
    const Planes planes = run.read(terms, call.inputs[0], own);
    float *of_run = sums + run.row, *rest = own + slot.widened;
    loss_table().plane_log_sum_exp(planes.x, planes.stride, terms.classes, run.n, of_run);
    if (s != 0) {
      std::fill(rest, rest + run.n, 0.0f);
      for (int64_t c = 0; c < terms.classes; ++c) {
        const float weight = weights == nullptr ? 1 : weights[c];
        for (int64_t i = 0; i < run.n; ++i) rest[i] += weight * planes.x[c * planes.stride + i];
      }
    }
    const float of_all = s / static_cast<float>(terms.classes), all = static_cast<float>(loss.all_weights);
    for (int64_t i = 0; i < run.n; ++i) {
      const int64_t label = loss.labels[run.row + i];
      float& to = losses[run.row + i];
      if (label == terms.ignore_index) {
        to = 0;
        continue;
      }
      const float weight = weights == nullptr ? 1 : weights[label];
      to = (1 - s) * weight * (of_run[i] - planes.x[label * planes.stride + i]);
      if (s != 0) to += of_all * (all * of_run[i] - rest[i]);
    }
  });
  if (lse != nullptr) write(*lse, 0, 1, terms.rows, sums);
  if (result == nullptr) return nullptr;
  const float whole = terms.whole ? loss.reduced(losses) : 0;
  write(*result, 0, 1, terms.whole ? 1 : terms.rows, terms.whole ? &whole : losses);
  return nullptr;
}

int64_t pixel_cross_entropy_grad_scratch(const BoundCall& call) {
  const PixelLossGradTerms terms(call);
  const Slot slot(terms, call.inputs[1]);
  return (parallel_threads() * slot.floats + class_weights_floats(call, 4)) * kFloatBytes;
}

KernelStatus pixel_cross_entropy_grad(const KernelCall& call, const PixelLossGradTerms& terms) {
  const float* weights = class_weights(call, 4, terms.classes);
  const Loss loss(terms, call.inputs[2], weights);
  if (loss.has_bad_label()) return kBadLabel;
  const TensorRef &logits = call.inputs[1], &dx = call.outputs[0];
  const bool is_float = logits.dtype == DType::kF32;
  const Slot slot(terms, logits);
  const float s = terms.smoothing, of_all = s / static_cast<float>(terms.classes);
  const float all = of_all * static_cast<float>(loss.all_weights);
  const TensorRef &dloss = call.inputs[0], &lse = call.inputs[3];
  float first;
  const float shared = terms.whole ? *read(dloss, 0, 1, 1, &first) / loss.divisor() : 0;
  const int64_t slot_bytes = call.scratch_bytes - class_weights_bytes(call, 4);
  run_tasks(terms.runs, slot.floats, call.scratch, slot_bytes, is_small(terms), [&](int64_t task, float* own) {
    const PixelRun run(terms, task);
    const Planes planes = run.read(terms, logits, own);
    float *g = own + slot.widened, *factor = g + terms.run;
    const float* sums = read(lse, run.row, 1, run.n, factor + terms.run);
    const float* incoming = terms.whole ? nullptr : read(dloss, run.row, 1, run.n, g);
    bool ignores = false;
    for (int64_t i = 0; i < run.n; ++i) {
      const int64_t label = loss.labels[run.row + i];
      const bool ignored = label == terms.ignore_index;
      ignores |= ignored;
      g[i] = ignored ? 0 : terms.whole ? shared : incoming[i];
      factor[i] = ignored ? 0 : g[i] * ((1 - s) * (weights == nullptr ? 1 : weights[label]) + all);
    }
    float* to = is_float ? dx.as<float>() + run.offset(terms, 0) : own;
    for (int64_t c = 0; c < terms.classes; ++c) {
      const float shift = s == 0 ? 0 : of_all * (weights == nullptr ? 1 : weights[c]);
      loss_table().plane_grad(planes.x + c * planes.stride, to + c * planes.stride, run.n, sums, factor, g, shift);
    }
    for (int64_t i = 0; i < run.n; ++i) {
      const int64_t label = loss.labels[run.row + i];
      if (label != terms.ignore_index)
        to[label * planes.stride + i] -= g[i] * (1 - s) * (weights == nullptr ? 1 : weights[label]);
    }
    for (int64_t i = 0; ignores && i < run.n; ++i) {
      if (loss.labels[run.row + i] != terms.ignore_index) continue;
      for (int64_t c = 0; c < terms.classes; ++c) to[c * planes.stride + i] = 0;
    }
    for (int64_t c = 0; !is_float && c < terms.classes; ++c) write(dx, run.offset(terms, c), 1, run.n, to + c * run.n);
  });
  return nullptr;
}

}  // namespace lowtide::cpu
