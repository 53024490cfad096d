// CtcLoss by the two tables of Graves et al. 2006, sections 4.1 and 4.2, in full, one sequence after another. A state
// is a place in the target with a blank before, between and after its classes.
#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"

namespace lowtide::reference {

KernelStatus CtcSequences::refusal(const KernelCall& call) const {
  const TensorRef& targets = operand(call, 1);
  if (blank >= classes) return "CtcLoss: blank is no class";
  int64_t begin = 0;
  for (int64_t b = 0; b < count; ++b) {
    const int64_t length = target_length(call, b), read = input_length(call, b);
    if (read < 0 || read > steps) return "CtcLoss: an input length is negative or above the number of steps";
    if (length < 0) return "CtcLoss: a target length is negative";
    if (length > room - (is_padded ? 0 : begin)) return "CtcLoss: a target length is above the number of targets";
    for (int64_t i = 0; i < length; ++i) {
      const int64_t at = is_padded ? b * targets.strides[0] + i * targets.strides[1] : (begin + i) * targets.strides[0];
      if (const int64_t target = get_int(targets, at); target < 0 || target >= classes)
        return "CtcLoss: a target is no class";
    }
    begin += length;
  }
  if (!is_padded && begin != room) return "CtcLoss: the target lengths do not add up to the number of targets";
  return nullptr;
}

namespace {

double log_sum(double a, double b) {
  const double largest = a > b || a != a ? a : b;
  if (largest == -kInfinity) return largest;
  return largest + std::log(std::exp(a - largest) + std::exp(b - largest));
}

// One sequence.
struct Sequence {
  Sequence(const KernelCall& called, const CtcSequences& all, int64_t index)
      : call(called),
        sequences(all),
        log_probs(all.operand(called, 0)),
        targets(all.operand(called, 1)),
        b(index),
        steps(all.input_length(called, index)),
        states(2 * all.target_length(called, index) + 1) {
    for (int64_t before = 0; before < b && !all.is_padded; ++before) begin += all.target_length(called, before);
  }

  int64_t class_of(int64_t state) const {
    if (state % 2 == 0) return sequences.blank;
    const int64_t i = state / 2;
    return get_int(targets, sequences.is_padded ? b * targets.strides[0] + i * targets.strides[1]
                                                : (begin + i) * targets.strides[0]);
  }
  double log_prob(int64_t step, int64_t of_class) const {
    return get(log_probs, step * log_probs.strides[0] + b * log_probs.strides[1] + of_class * log_probs.strides[2]);
  }
  // Whether a path goes from `state` to the one after next.
  bool skips(int64_t state) const { return state + 2 < states && class_of(state) != class_of(state + 2); }

  // Paths that are in `state` after `step`, from the start.
  void fill_forward(double* table) const {
    for (int64_t t = 0; t < steps; ++t) {
      for (int64_t s = 0; s < states; ++s) {
        double before = t == 0 && s < 2 ? 0 : -kInfinity;
        const auto from = [&](int64_t state) { before = log_sum(before, table[(t - 1) * states + state]); };
        if (t > 0) from(s);
        if (t > 0 && s > 0) from(s - 1);
        if (t > 0 && s > 1 && skips(s - 2)) from(s - 2);
        table[t * states + s] = before + log_prob(t, class_of(s));
      }
    }
  }
  // Paths that are in `state` at `step`, to the end.
  void fill_backward(double* table) const {
    for (int64_t t = steps - 1; t >= 0; --t) {
      for (int64_t s = 0; s < states; ++s) {
        double after = t == steps - 1 && s >= states - 2 ? 0 : -kInfinity;
        const auto to = [&](int64_t state) { after = log_sum(after, table[(t + 1) * states + state]); };
        if (t < steps - 1) to(s);
        if (t < steps - 1 && s + 1 < states) to(s + 1);
        if (t < steps - 1 && skips(s)) to(s + 2);
        table[t * states + s] = after + log_prob(t, class_of(s));
      }
    }
  }
  double loss(const double* forward) const {
    if (steps == 0) return states == 1 ? 0 : kInfinity;
    const double* last = forward + (steps - 1) * states;
    return -log_sum(last[states - 1], states > 1 ? last[states - 2] : -kInfinity);
  }

  const KernelCall& call;
  const CtcSequences& sequences;
  const TensorRef &log_probs, &targets;
  int64_t b, steps, states, begin = 0;
};

int64_t table_bytes(const CtcSequences& all) { return std::max<int64_t>(1, all.steps) * (2 * all.room + 1) * 8; }

}  // namespace

int64_t ctc_loss_scratch(const BoundCall& call) { return table_bytes(CtcForward(call)); }
int64_t ctc_loss_grad_scratch(const BoundCall& call) { return 2 * table_bytes(CtcBackward(call)); }

KernelStatus ctc_loss(const KernelCall& call, const CtcForward& all) {
  if (const KernelStatus refused = all.refusal(call)) return refused;
  double* table = static_cast<double*>(call.scratch);
  for (int64_t b = 0; b < all.count; ++b) {
    const Sequence sequence(call, all, b);
    sequence.fill_forward(table);
    const double loss = sequence.loss(table);
    set(call.outputs[0], b * call.outputs[0].strides[0], all.zero_infinity && loss == kInfinity ? 0 : loss);
  }
  return nullptr;
}

KernelStatus ctc_loss_grad(const KernelCall& call, const CtcBackward& all) {
  if (const KernelStatus refused = all.refusal(call)) return refused;
  const TensorRef &dloss = call.inputs[0], &dx = call.outputs[0];
  double *forward = static_cast<double*>(call.scratch), *backward = forward + table_bytes(all) / 8;
  for (int64_t b = 0; b < all.count; ++b) {
    const Sequence sequence(call, all, b);
    sequence.fill_forward(forward);
    sequence.fill_backward(backward);
    const double loss = sequence.loss(forward), dy = get(dloss, b * dloss.strides[0]);
    const bool is_zeroed = all.zero_infinity && loss == kInfinity;
    for (int64_t t = 0; t < all.steps; ++t) {
      for (int64_t c = 0; c < all.classes; ++c) {
        double slope = 0;
        if (t < sequence.steps && !is_zeroed) {
          const double x = sequence.log_prob(t, c);
          double paths = -kInfinity;
          for (int64_t s = 0; s < sequence.states; ++s) {
            const int64_t at = t * sequence.states + s;
            if (sequence.class_of(s) == c) paths = log_sum(paths, forward[at] + backward[at]);
          }
          // Not a number where a probability is 0, or that of all paths: so PyTorch has it.
          slope = dy * ((all.normalised ? std::exp(x) : 0) - std::exp(paths + loss - x));
        }
        set(dx, t * dx.strides[0] + b * dx.strides[1] + c * dx.strides[2], slope);
      }
    }
  }
  return nullptr;
}

}  // namespace lowtide::reference
