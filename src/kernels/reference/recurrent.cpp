// The steps of a recurrent layer, row by row: a row knows nothing of another.
#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"

namespace lowtide::reference {

KernelStatus Recurrent::refusal(const KernelCall& call) const {
  for (int64_t row = 0; row < rows; ++row)
    if (const int64_t end = length(call, row); end < 0 || end > steps)
      return "a length of a recurrent layer's rows is negative or above the number of steps";
  return nullptr;
}

namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Number `i` of a row of x[T, B, N], or of x[B, N].
double at(const TensorRef& x, int64_t step, int64_t row, int64_t i) {
  return get(x, step * x.strides[0] + row * x.strides[1] + i * x.strides[2]);
}
double at(const TensorRef& x, int64_t row, int64_t i) { return get(x, row * x.strides[0] + i * x.strides[1]); }
void put(const TensorRef& x, int64_t step, int64_t row, int64_t i, double value) {
  if (x.present) set(x, step * x.strides[0] + row * x.strides[1] + i * x.strides[2], value);
}
void put(const TensorRef& x, int64_t row, int64_t i, double value) {
  if (x.present) set(x, row * x.strides[0] + i * x.strides[1], value);
}

void clear_rest(const TensorRef& x, int64_t length, int64_t row) {
  for (int64_t t = length; x.present && t < x.sizes[0]; ++t)
    for (int64_t i = 0; i < x.sizes[2]; ++i) put(x, t, row, i, 0);
}

// One row: its states, and what a step adds to them. `memory` is the LSTM's; `sums` what the state gives the gates.
struct Row {
  double *state, *memory, *sums;
  Row(const KernelCall& call, int64_t units)
      : state(static_cast<double*>(call.scratch)), memory(state + units), sums(memory + units) {}
};

void run_step(const KernelCall& call, const RecurrentForward& layer, const Row& of, int64_t t, int64_t row) {
  const TensorRef &gates = call.inputs[0], &weight = call.inputs[1], &bias = input_or_absent(call, 4);
  const TensorRef &y = call.outputs[0], &memories = output_or_absent(call, 3), &kept = output_or_absent(call, 2);
  const int64_t units = layer.units;
  for (int64_t g = 0; g < layer.cell().gates * units; ++g) {
    double sum = bias.present ? get(bias, g * bias.strides[0]) : 0;
    for (int64_t k = 0; k < units; ++k) sum += of.state[k] * at(weight, g, k);
    of.sums[g] = sum;
  }
  for (int64_t u = 0; u < units; ++u) {
    const auto from_input = [&](int64_t gate) { return at(gates, t, row, gate * units + u); };
    const auto whole = [&](int64_t gate) { return from_input(gate) + of.sums[gate * units + u]; };
    const auto keep = [&](int64_t gate, double value) { put(kept, t, row, gate * units + u, value); };
    double& state = of.state[u];
    if (layer.kind == CellKind::kLstm) {
      const double in = sigmoid(whole(0)), forget = sigmoid(whole(1)), fresh = std::tanh(whole(2));
      const double out = sigmoid(whole(3));
      of.memory[u] = forget * of.memory[u] + in * fresh;
      state = out * std::tanh(of.memory[u]);
      keep(0, in);
      keep(1, forget);
      keep(2, fresh);
      keep(3, out);
      put(memories, t, row, u, of.memory[u]);
    } else if (layer.kind == CellKind::kGru) {
      const double reset = sigmoid(whole(0)), update = sigmoid(whole(1)), of_state = of.sums[2 * units + u];
      const double fresh = std::tanh(from_input(2) + reset * of_state);
      state = fresh + update * (state - fresh);
      keep(0, reset);
      keep(1, update);
      keep(2, fresh);
      keep(3, of_state);
    } else {
      state = layer.kind == CellKind::kTanh ? std::tanh(whole(0))
              : is_nan_value(whole(0))      ? whole(0)
                                            : std::max(whole(0), 0.0);
    }
    put(y, t, row, u, state);
  }
}

// What flows into one row's gates at a step, and back from there into the state and the memory before it.
void run_step_back(const KernelCall& call, const RecurrentBackward& layer, const Row& of, int64_t t, int64_t row,
                   int64_t length) {
  const TensorRef &dy = input_or_absent(call, 6), &y = call.inputs[0], &memories = input_or_absent(call, 4),
                  &kept = input_or_absent(call, 5), &weight = call.inputs[1], &state = call.inputs[2],
                  &memory = input_or_absent(call, 3);
  const TensorRef &dgates = output_or_absent(call, 0), &before = output_or_absent(call, 3),
                  &dof_state = output_or_absent(call, 4);
  const int64_t units = layer.units, gates = layer.cell().gates;
  const bool has_before = layer.has_before(t, length);
  const int64_t earlier = layer.step_before(t);
  for (int64_t u = 0; u < units; ++u) {
    const auto gate = [&](int64_t index) { return at(kept, t, row, index * units + u); };
    // What flows into a gate, and into what the state gave it.
    const auto give = [&](int64_t index, double slope, double state_slope) {
      put(dgates, t, row, index * units + u, slope);
      put(dof_state, t, row, index * units + u, state_slope);
      of.sums[index * units + u] = state_slope;
    };
    const double h = has_before ? at(y, earlier, row, u) : at(state, row, u);
    put(before, t, row, u, h);
    const double dh = of.state[u] + (dy.present ? at(dy, t, row, u) : 0);
    of.state[u] = 0;
    if (layer.kind == CellKind::kLstm) {
      const double in = gate(0), forget = gate(1), fresh = gate(2), out = gate(3);
      const double c = has_before ? at(memories, earlier, row, u) : at(memory, row, u);
      const double shown = std::tanh(at(memories, t, row, u));
      const double dc = of.memory[u] + dh * out * (1 - shown * shown);
      const auto both = [&](int64_t index, double slope) { give(index, slope, slope); };
      both(0, dc * fresh * in * (1 - in));
      both(1, dc * c * forget * (1 - forget));
      both(2, dc * in * (1 - fresh * fresh));
      both(3, dh * shown * out * (1 - out));
      of.memory[u] = dc * forget;
    } else if (layer.kind == CellKind::kGru) {
      const double reset = gate(0), update = gate(1), fresh = gate(2), of_state = gate(3);
      const double dfresh = dh * (1 - update) * (1 - fresh * fresh);
      const double dreset = dfresh * of_state * reset * (1 - reset), dupdate = dh * (h - fresh) * update * (1 - update);
      give(0, dreset, dreset);
      give(1, dupdate, dupdate);
      give(2, dfresh, dfresh * reset);
      of.state[u] = dh * update;
    } else {
      const double value = at(y, t, row, u);
      const double slope = layer.kind == CellKind::kTanh ? dh * (1 - value * value) : value > 0 ? dh : 0;
      give(0, slope, slope);
    }
  }
  for (int64_t u = 0; u < units; ++u)
    for (int64_t g = 0; g < gates * units; ++g) of.state[u] += of.sums[g] * at(weight, g, u);
}

int64_t bytes_of(const Recurrent& layer) { return (2 + layer.cell().gates) * std::max<int64_t>(1, layer.units) * 8; }

}  // namespace

int64_t recurrence_scratch(const BoundCall& call) { return bytes_of(RecurrentForward(call)); }
int64_t recurrence_grad_scratch(const BoundCall& call) { return bytes_of(RecurrentBackward(call)); }

KernelStatus recurrence(const KernelCall& call, const RecurrentForward& layer) {
  if (const KernelStatus refused = layer.refusal(call)) return refused;
  const Row of(call, layer.units);
  const bool has_memory = layer.cell().has_memory;
  for (int64_t row = 0; row < layer.rows; ++row) {
    const int64_t length = layer.length(call, row);
    for (int64_t u = 0; u < layer.units; ++u) {
      of.state[u] = at(call.inputs[2], row, u);
      of.memory[u] = has_memory ? at(call.inputs[3], row, u) : 0;
    }
    for (int64_t turn = 0; turn < layer.steps; ++turn)
      if (layer.step(turn) < length) run_step(call, layer, of, layer.step(turn), row);
    for (size_t output : {0, 2, 3}) clear_rest(output_or_absent(call, output), length, row);
    for (int64_t u = 0; u < layer.units; ++u) {
      put(output_or_absent(call, 1), row, u, of.state[u]);
      put(output_or_absent(call, 4), row, u, of.memory[u]);
    }
  }
  return nullptr;
}

KernelStatus recurrence_grad(const KernelCall& call, const RecurrentBackward& layer) {
  if (const KernelStatus refused = layer.refusal(call)) return refused;
  const Row of(call, layer.units);
  const TensorRef &dstate = input_or_absent(call, 7), &dmemory = input_or_absent(call, 8);
  for (int64_t row = 0; row < layer.rows; ++row) {
    const int64_t length = layer.length(call, row);
    for (int64_t u = 0; u < layer.units; ++u) {
      of.state[u] = dstate.present ? at(dstate, row, u) : 0;
      of.memory[u] = dmemory.present ? at(dmemory, row, u) : 0;
    }
    for (int64_t turn = layer.steps - 1; turn >= 0; --turn)
      if (layer.step(turn) < length) run_step_back(call, layer, of, layer.step(turn), row, length);
    for (size_t output : {0, 3, 4}) clear_rest(output_or_absent(call, output), length, row);
    for (int64_t u = 0; u < layer.units; ++u) {
      put(output_or_absent(call, 1), row, u, of.state[u]);
      put(output_or_absent(call, 2), row, u, of.memory[u]);
    }
  }
  return nullptr;
}

}  // namespace lowtide::reference
