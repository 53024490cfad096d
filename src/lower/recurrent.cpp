// One step of a recurrent layer: torch.nn.GRUCell, LSTMCell, RNNCell.
#include "lower/targets.h"

namespace lowtide {
namespace {

// What the cells share: rows of the input and of the hidden state, and the gates that each of them asks for.
struct Cell {
  Call& c;
  DType dtype = c.dtype();

  // x w^T + bias.
  ValueId gates(ValueId x, std::string_view weight, std::string_view bias) const {
    std::vector<ValueId> operands{x, c.operand(weight, dtype)};
    if (c.optional(bias)) operands.push_back(c.operand(bias, dtype));
    return c.b.op(Op::kGemm, operands, {{"transA", false}, {"transB", true}, {"alpha", 1.0}, {"beta", 1.0}});
  }
  ValueId of_input() const { return gates(c.operand("input", dtype), "w_ih", "b_ih"); }
  ValueId of_state(ValueId state) const { return gates(state, "w_hh", "b_hh"); }
  // The one of several gates that lie side by side.
  ValueId gate(ValueId gates, int64_t index, const Dim& width) const {
    return c.b.slice(gates, 1, Dim(index) * width, Dim(index + 1) * width);
  }
  ValueId sigmoid(ValueId x) const { return c.b.op(Op::kSigmoid, {x}); }
  ValueId tanh(ValueId x) const { return c.b.op(Op::kTanh, {x}); }
};

// Autocast chooses the dtypes of what is inside of a cell.
bool is_plain(Call& c, ValueId state) {
  return is_float(c.dtype()) && !c.node().attrs.has("autocast") && c.b.rank(c.tensor("input")) == 2 &&
         c.b.rank(state) == 2;
}

bool lower_rnn_cell(Call& c, Op activation) {
  const Cell cell{c};
  if (!is_plain(c, c.tensor("hx"))) return false;
  const ValueId of_input = cell.of_input(), of_state = cell.of_state(c.operand("hx", cell.dtype));
  return c.result(c.b.op(activation, {c.b.add(of_input, of_state)}));
}

}  // namespace

// Gates: reset, update, new.
bool lower_gru_cell(Call& c) {
  const Cell cell{c};
  if (!is_plain(c, c.tensor("hx"))) return false;
  const ValueId state = c.operand("hx", cell.dtype), of_input = cell.of_input(), of_state = cell.of_state(state);
  const Dim width = c.shape()[1];
  Builder& b = c.b;
  const auto sum = [&](int64_t index) {
    const ValueId gate = cell.gate(of_input, index, width);
    return b.add(gate, cell.gate(of_state, index, width));
  };
  const ValueId reset = cell.sigmoid(sum(0)), update = cell.sigmoid(sum(1));
  const ValueId fresh_input = cell.gate(of_input, 2, width), fresh_state = cell.gate(of_state, 2, width);
  const ValueId fresh = cell.tanh(b.add(fresh_input, b.mul(fresh_state, reset)));
  return c.result(b.add(b.mul(b.sub(state, fresh), update), fresh));
}

// Gates: input, forget, cell, output. The state is [hidden, cell], and so are the results.
bool lower_lstm_cell(Call& c) {
  const Cell cell{c};
  const std::vector<ValueId> state = c.tensors("hx");
  if (state.size() != 2 || !is_plain(c, state[0]) || c.b.dtype(state[0]) != cell.dtype ||
      c.b.dtype(state[1]) != cell.dtype)
    return false;
  Builder& b = c.b;
  const ValueId of_input = cell.of_input(), of_state = cell.of_state(state[0]), gates = b.add(of_input, of_state);
  const Dim width = c.b.shape(state[0])[1];
  const auto sigmoid = [&](int64_t gate) { return cell.sigmoid(cell.gate(gates, gate, width)); };
  const ValueId kept = b.mul(sigmoid(1), state[1]), chosen = sigmoid(0);
  const ValueId memory = b.add(kept, b.mul(chosen, cell.tanh(cell.gate(gates, 2, width))));
  const ValueId shown = sigmoid(3);
  if (c.wants(0)) c.result(b.mul(shown, cell.tanh(memory)), 0);
  if (c.wants(1)) c.result(memory, 1);
  return true;
}

bool lower_rnn_tanh_cell(Call& c) { return lower_rnn_cell(c, Op::kTanh); }
bool lower_rnn_relu_cell(Call& c) { return lower_rnn_cell(c, Op::kRelu); }

}  // namespace lowtide
