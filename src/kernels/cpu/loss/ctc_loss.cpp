// CtcLoss without its table in forward, where two rows of it are there at a time, and with one of the two in backward.
// Logarithms of probabilities are added up in doubles. A sequence has the rows of as many states as it may have, so
// that all are there at once: targets that stand one after another have together no more than they are.
#include "kernels/cpu/loss/ctc_loss.h"

#include <cmath>
#include <utility>

#include "base/parallel.h"
#include "kernels/strided.h"

namespace lowtide::cpu {
namespace {

using reference::CtcBackward, reference::CtcForward, reference::CtcSequences, reference::kInfinity;

// Most often one or two of them are 0 probabilities, of which no exponential is taken.
double log_sum(double a, double b, double c) {
  if (b > a) std::swap(a, b);
  if (c > a) std::swap(a, c);
  if (a == -kInfinity && b == a && c == a) return a;
  double others = 0;
  if (b != -kInfinity) others += std::exp(b - a);
  if (c != -kInfinity) others += std::exp(c - a);
  return a + std::log1p(others);
}

// All states that sequences before `b` may have.
int64_t states_before(const KernelCall& call, const CtcSequences& all, int64_t b) {
  if (all.is_padded) return b * (2 * all.room + 1);
  int64_t targets = 0;
  for (int64_t before = 0; before < b; ++before) targets += all.target_length(call, before);
  return 2 * targets + b;
}
int64_t states_of_all(const CtcSequences& all) { return (all.is_padded ? all.count : 1) * 2 * all.room + all.count; }

int64_t bytes_of(int64_t numbers) { return std::max<int64_t>(1, numbers) * static_cast<int64_t>(sizeof(double)); }

template <class T>
struct Sequence {
  Sequence(const KernelCall& call, const CtcSequences& all, int64_t b)
      : first_state(states_before(call, all, b)),
        steps(all.input_length(call, b)),
        states(2 * all.target_length(call, b) + 1),
        blank(all.blank) {
    const TensorRef &x = all.operand(call, 0), &labels = all.operand(call, 1);
    log_probs = x.as<T>() + b * x.strides[1];
    step_stride = x.strides[0];
    class_stride = x.strides[2];
    target_stride = labels.strides[all.is_padded ? 1 : 0];
    targets = labels.as<int64_t>() + (all.is_padded ? b * labels.strides[0] : (first_state - b) / 2 * target_stride);
  }

  int64_t class_of(int64_t state) const { return state % 2 == 0 ? blank : targets[state / 2 * target_stride]; }
  double log_prob(int64_t t, int64_t of_class) const {
    return static_cast<double>(log_probs[t * step_stride + of_class * class_stride]);
  }
  bool is_entered_by_skip(int64_t s) const { return s % 2 == 1 && s > 1 && class_of(s) != class_of(s - 2); }
  bool is_left_by_skip(int64_t s) const { return s + 2 < states && is_entered_by_skip(s + 2); }

  // Paths from the start up to step t, by the state that they are in; `before` are those up to t - 1.
  void step_forward(int64_t t, const double* before, double* row) const {
    const double blank_prob = log_prob(t, blank);
    for (int64_t s = 0; s < states; ++s) {
      double paths = -kInfinity;
      if (t == 0) {
        paths = s < 2 ? 0 : -kInfinity;
      } else if (s <= 2 * t + 1) {  // further states are not reached yet
        paths =
            log_sum(before[s], s > 0 ? before[s - 1] : -kInfinity, is_entered_by_skip(s) ? before[s - 2] : -kInfinity);
      }
      row[s] = paths + (s % 2 == 0 ? blank_prob : log_prob(t, class_of(s)));
    }
  }
  // Paths from step t on to the end; `row` holds those from t + 1 on and is overwritten.
  void step_backward(int64_t t, double* row) const {
    const double blank_prob = log_prob(t, blank);
    for (int64_t s = 0; s < states; ++s) {
      double paths = s >= states - 2 ? 0 : -kInfinity;
      if (t < steps - 1)
        paths = log_sum(row[s], s + 1 < states ? row[s + 1] : -kInfinity, is_left_by_skip(s) ? row[s + 2] : -kInfinity);
      row[s] = paths + (s % 2 == 0 ? blank_prob : log_prob(t, class_of(s)));
    }
  }
  double loss(const double* last) const {
    if (steps == 0) return states == 1 ? 0 : kInfinity;
    return -log_sum(last[states - 1], states > 1 ? last[states - 2] : -kInfinity, -kInfinity);
  }

  int64_t first_state, steps, states, blank;
  const T* log_probs;
  const int64_t* targets;
  int64_t step_stride, class_stride, target_stride;
};

template <class T>
void run_forward(const KernelCall& call, const CtcForward& all) {
  const TensorRef& losses = call.outputs[0];
  parallel_for(all.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const Sequence<T> sequence(call, all, b);
      double* row = static_cast<double*>(call.scratch) + 2 * sequence.first_state;
      double* other = row + sequence.states;
      for (int64_t t = 0; t < sequence.steps; ++t, std::swap(row, other)) sequence.step_forward(t, other, row);
      const double loss = sequence.loss(other);
      losses.as<T>()[b * losses.strides[0]] = static_cast<T>(all.zero_infinity && loss == kInfinity ? 0 : loss);
    }
  });
}

// The gradient of one sequence; `table` has a row of its states for each step, and one more.
template <class T>
void run_backward(const Sequence<T>& sequence, const CtcBackward& all, double dy, double* table, const TensorRef& dx,
                  T* gradient) {
  const int64_t states = sequence.states, steps = sequence.steps;
  const auto at = [&](int64_t t, int64_t c) -> T& { return gradient[t * dx.strides[0] + c * dx.strides[2]]; };
  const double* last = table;
  for (int64_t t = 0; t < steps; ++t) {
    double* row = table + t * states;
    sequence.step_forward(t, last, row);
    last = row;
  }
  double* after = table + steps * states;
  const double loss = sequence.loss(last);
  const bool is_zeroed = all.zero_infinity && loss == kInfinity, is_impossible = !std::isfinite(loss);
  for (int64_t t = all.steps - 1; t >= 0; --t) {
    if (t >= steps || is_zeroed) {
      for (int64_t c = 0; c < all.classes; ++c) at(t, c) = 0;
      continue;
    }
    for (int64_t c = 0; c < all.classes; ++c) {
      const double x = sequence.log_prob(t, c);
      // Not a number where a probability is 0, or that of all paths: so PyTorch has it.
      const bool is_undefined = is_impossible || x == -kInfinity;
      at(t, c) = static_cast<T>(is_undefined     ? dy * std::numeric_limits<double>::quiet_NaN()
                                : all.normalised ? dy * std::exp(x)
                                                 : 0);
    }
    if (is_impossible) continue;
    sequence.step_backward(t, after);
    const double* before = table + t * states;
    double blanks = 0;
    for (int64_t s = 0; s < states; ++s) {
      const int64_t of_class = sequence.class_of(s);
      const double share = std::exp(before[s] + after[s] + loss - sequence.log_prob(t, of_class));
      if (s % 2 == 0) {
        blanks += share;
      } else {
        at(t, of_class) -= static_cast<T>(dy * share);
      }
    }
    at(t, sequence.blank) -= static_cast<T>(dy * blanks);
  }
}

template <class T>
void run_backward(const KernelCall& call, const CtcBackward& all) {
  const TensorRef &dloss = call.inputs[0], &dx = call.outputs[0];
  parallel_for(all.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const Sequence<T> sequence(call, all, b);
      run_backward(sequence, all, static_cast<double>(dloss.as<T>()[b * dloss.strides[0]]),
                   static_cast<double*>(call.scratch) + (all.steps + 1) * sequence.first_state, dx,
                   dx.as<T>() + b * dx.strides[1]);
    }
  });
}

}  // namespace

const char* supports_ctc_loss(const KernelQuery& query) {
  const DType dtype = query.inputs[0].dtype;
  return dtype == DType::kF32 || dtype == DType::kF64 ? nullptr : "neither f32 nor f64";
}

int64_t ctc_loss_scratch(const BoundCall& call) { return bytes_of(2 * states_of_all(CtcForward(call))); }
int64_t ctc_loss_grad_scratch(const BoundCall& call) {
  const CtcBackward all(call);
  return bytes_of((all.steps + 1) * states_of_all(all));
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
