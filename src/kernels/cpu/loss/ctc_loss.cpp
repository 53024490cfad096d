// CtcLoss without its table in forward, where two rows of it are there at a time, and with one of the two in backward.
// Logarithms of probabilities are added up in doubles. A sequence has the rows of as many states as it may have, so
// that all are there at once: targets that stand one after another have together no more than they are.
#include "kernels/cpu/loss/ctc_loss.h"

#include <cmath>
#include <utility>

#include "base/parallel.h"
#include "kernels/cpu/loss/ctc_table.h"
#include "kernels/strided.h"

namespace lowtide::cpu {
namespace {

using reference::CtcBackward, reference::CtcForward, reference::CtcSequences, reference::kInfinity;

// Of a row, whose first state stands behind two places.
int64_t width_of(int64_t states) { return (states + kStatesAtOnce - 1) / kStatesAtOnce * kStatesAtOnce + 4; }
int64_t states_of(int64_t targets) { return 2 * targets + 1; }

// Of one row each of all sequences before `b`, and of all of them whatever their lengths are.
int64_t widths_before(const KernelCall& call, const CtcSequences& all, int64_t b) {
  if (all.is_padded) return b * width_of(states_of(all.room));
  int64_t widths = 0;
  for (int64_t before = 0; before < b; ++before) widths += width_of(states_of(all.target_length(call, before)));
  return widths;
}
int64_t widths_of_all(const CtcSequences& all) {
  if (all.is_padded) return all.count * width_of(states_of(all.room));
  return 2 * all.room + all.count * width_of(kStatesAtOnce);
}
int64_t targets_before(const KernelCall& call, const CtcSequences& all, int64_t b) {
  int64_t targets = 0;
  for (int64_t before = 0; before < b; ++before) targets += all.target_length(call, before);
  return targets;
}

// Rows beside those of the table: what states are skipped, the probabilities at a step, and in backward those of paths
// from a step on and their shares.
constexpr int64_t kForwardRows = 4, kBackwardRows = 5;

int64_t bytes_of(int64_t numbers) { return std::max<int64_t>(1, numbers) * static_cast<int64_t>(sizeof(double)); }

template <class T>
struct Sequence {
  // `memory`: of kForwardRows rows, or those of the table and kBackwardRows.
  Sequence(const KernelCall& call, const CtcSequences& all, int64_t b, double* memory)
      : steps(all.input_length(call, b)),
        states(states_of(all.target_length(call, b))),
        width(width_of(states)),
        blank(all.blank),
        probs(memory + 2),
        skips(reinterpret_cast<int64_t*>(memory + width) + 2),
        rows(memory + 2 * width + 2) {
    const TensorRef &x = all.operand(call, 0), &labels = all.operand(call, 1);
    log_probs = x.as<T>() + b * x.strides[1];
    step_stride = x.strides[0];
    class_stride = x.strides[2];
    target_stride = labels.strides[all.is_padded ? 1 : 0];
    targets =
        labels.as<int64_t>() + (all.is_padded ? b * labels.strides[0] : targets_before(call, all, b) * target_stride);
    std::fill_n(probs - 2, width, -kInfinity);
    std::fill_n(skips - 2, width, 0);
    for (int64_t s = 3; s < states; s += 2) skips[s] = class_of(s) != class_of(s - 2) ? -1 : 0;
  }

  double* row(int64_t index) const { return rows + index * width; }
  int64_t class_of(int64_t state) const { return state % 2 == 0 ? blank : targets[state / 2 * target_stride]; }
  void read_probs(int64_t t) const {
    const T* step = log_probs + t * step_stride;
    const double of_blank = static_cast<double>(step[blank * class_stride]);
    for (int64_t s = 0; s < states; s += 2) probs[s] = of_blank;
    for (int64_t s = 1; s < states; s += 2) probs[s] = static_cast<double>(step[class_of(s) * class_stride]);
  }
  // One path is in this state and none in another: the row before the first step and that after the last.
  void begin_at(double* row, int64_t state) const {
    std::fill_n(row - 2, width, -kInfinity);
    row[state] = 0;
  }

  // Paths from the start up to step t, by the state that they are in; `before` are those up to t - 1.
  void step_forward(int64_t t, const double* before, double* row) const {
    read_probs(t);
    ctc_table().forward(before, skips, probs, row, states);
  }
  double loss(const double* last) const {
    if (steps == 0) return states == 1 ? 0 : kInfinity;
    const double a = last[states - 1], b = states > 1 ? last[states - 2] : -kInfinity;
    const double more = a > b || a != a ? a : b, less = more == a ? b : a;
    return less == -kInfinity ? -more : -(more + std::log1p(std::exp(less - more)));
  }

  int64_t steps, states, width, blank;
  double* probs;
  int64_t* skips;
  double* rows;
  const T* log_probs;
  const int64_t* targets;
  int64_t step_stride, class_stride, target_stride;
};

template <class T>
void run_forward(const KernelCall& call, const CtcForward& all) {
  const TensorRef& losses = call.outputs[0];
  parallel_for(all.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const Sequence<T> sequence(call, all, b,
                                 static_cast<double*>(call.scratch) + kForwardRows * widths_before(call, all, b));
      double *row = sequence.row(0), *other = sequence.row(1);
      std::fill_n(row - 2, sequence.width, -kInfinity);
      sequence.begin_at(other, 0);
      for (int64_t t = 0; t < sequence.steps; ++t, std::swap(row, other)) sequence.step_forward(t, other, row);
      const double loss = sequence.loss(other);
      losses.as<T>()[b * losses.strides[0]] = static_cast<T>(all.zero_infinity && loss == kInfinity ? 0 : loss);
    }
  });
}

// dy exp(x) of all classes at a step, or 0; not a number where a probability is 0, or that of all paths: so PyTorch
// has it.
template <class T>
void begin_gradient(const Sequence<T>& sequence, const CtcBackward& all, double dy, bool is_impossible, int64_t t,
                    T* gradient, int64_t stride) {
  const T* x = sequence.log_probs + t * sequence.step_stride;
  int64_t c = 0;
  if (all.normalised && !is_impossible && stride == 1 && sequence.class_stride == 1) {
    if constexpr (std::is_same_v<T, float>) {
      c = ctc_table().exp_f32(x, gradient, all.classes, dy);
    } else {
      c = ctc_table().exp_f64(x, gradient, all.classes, dy);
    }
  }
  for (; c < all.classes; ++c) {
    const double log_prob = static_cast<double>(x[c * sequence.class_stride]);
    const bool is_undefined = is_impossible || log_prob == -kInfinity;
    gradient[c * stride] = static_cast<T>(is_undefined     ? dy * std::numeric_limits<double>::quiet_NaN()
                                          : all.normalised ? dy * std::exp(log_prob)
                                                           : 0);
  }
}

// The gradient of one sequence; its table has a row for each step behind the one before the first.
template <class T>
void run_backward(const Sequence<T>& sequence, const CtcBackward& all, double dy, const TensorRef& dx, T* gradient) {
  const int64_t states = sequence.states, steps = sequence.steps;
  double *after = sequence.row(0), *shares = sequence.row(1);
  const auto table = [&](int64_t t) { return sequence.row(t + 3); };
  sequence.begin_at(table(-1), 0);
  for (int64_t t = 0; t < steps; ++t) {
    std::fill_n(table(t) - 2, 2, -kInfinity);
    sequence.step_forward(t, table(t - 1), table(t));
  }
  const double loss = sequence.loss(table(steps - 1));
  const bool is_zeroed = all.zero_infinity && loss == kInfinity, is_impossible = !std::isfinite(loss);
  sequence.begin_at(after, states - 1);
  for (int64_t t = all.steps - 1; t >= 0; --t) {
    T* at_step = gradient + t * dx.strides[0];
    const auto at = [&](int64_t c) -> T& { return at_step[c * dx.strides[2]]; };
    if (t >= steps || is_zeroed) {
      for (int64_t c = 0; c < all.classes; ++c) at(c) = 0;
      continue;
    }
    begin_gradient(sequence, all, dy, is_impossible, t, at_step, dx.strides[2]);
    if (is_impossible) continue;
    sequence.read_probs(t);
    ctc_table().backward(after, sequence.skips, sequence.probs, states);
    ctc_table().shares(table(t), after, sequence.probs, loss, shares, states);
    double blanks = 0;
    for (int64_t s = 0; s < states; s += 2) blanks += shares[s];
    for (int64_t s = 1; s < states; s += 2) at(sequence.class_of(s)) -= static_cast<T>(dy * shares[s]);
    at(sequence.blank) -= static_cast<T>(dy * blanks);
  }
}

template <class T>
void run_backward(const KernelCall& call, const CtcBackward& all) {
  const TensorRef &dloss = call.inputs[0], &dx = call.outputs[0];
  parallel_for(all.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t rows = all.steps + kBackwardRows;
      const Sequence<T> sequence(call, all, b, static_cast<double*>(call.scratch) + rows * widths_before(call, all, b));
      run_backward(sequence, all, static_cast<double>(dloss.as<T>()[b * dloss.strides[0]]), dx,
                   dx.as<T>() + b * dx.strides[1]);
    }
  });
}

}  // namespace

const char* supports_ctc_loss(const KernelQuery& query) {
  const DType dtype = query.inputs[0].dtype;
  return dtype == DType::kF32 || dtype == DType::kF64 ? nullptr : "neither f32 nor f64";
}

int64_t ctc_loss_scratch(const BoundCall& call) { return bytes_of(kForwardRows * widths_of_all(CtcForward(call))); }
int64_t ctc_loss_grad_scratch(const BoundCall& call) {
  const CtcBackward all(call);
  return bytes_of((all.steps + kBackwardRows) * widths_of_all(all));
}

KernelStatus ctc_loss(const KernelCall& call, const CtcForward& all) {
  if (const KernelStatus refused = all.refusal(call)) return refused;
  call.inputs[0].dtype == DType::kF32 ? run_forward<float>(call, all) : run_forward<double>(call, all);
  return nullptr;
}

KernelStatus ctc_loss_grad(const KernelCall& call, const CtcBackward& all) {
  if (const KernelStatus refused = all.refusal(call)) return refused;
  call.inputs[0].dtype == DType::kF32 ? run_backward<float>(call, all) : run_backward<double>(call, all);
  return nullptr;
}

}  // namespace lowtide::cpu
