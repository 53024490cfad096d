// Recurrent layers, torch.nn.LSTM, GRU and RNN, and one step of one: GRUCell, LSTMCell, RNNCell.
#include <algorithm>

#include "lower/targets.h"
#include "opset/recurrent_cells.h"

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

namespace {

// A whole layer: the products with its input for all steps at once, then the steps, in each direction.
struct LayerCall {
  // `argument`: the one that is x; of a packed layer its rows have `lengths`.
  LayerCall(Call& call, CellKind of_kind, std::string_view argument)
      : c(call),
        kind(of_kind),
        input(call.tensor(argument)),
        lengths(call.optional("lengths")),
        given(call.tensors("hx")),
        params(call.tensors("params")) {
    layers = c.integer("num_layers");
    ways = c.flag("bidirectional") ? 2 : 1;
    each = c.flag("has_biases") ? 4 : 2;
  }

  // Projected states have a weight more; autocast chooses the dtypes of what is inside of a layer.
  bool is_served() const {
    const DType dtype = c.dtype();
    if ((dtype != DType::kF32 && dtype != DType::kF64) || c.node().attrs.has("autocast")) return false;
    if (given.size() != (recurrent_cell(kind).has_memory ? 2u : 1u) || c.b.rank(input) != 3) return false;
    if (params.size() != static_cast<size_t>(layers * ways * each)) return false;
    const auto is_plain = [&](ValueId value) { return value && c.b.dtype(value) == dtype; };
    return is_plain(input) && std::all_of(given.begin(), given.end(), is_plain) &&
           std::all_of(params.begin(), params.end(), is_plain);
  }

  struct Way {
    ValueId y, state, memory;
  };
  // x[T, B, N]; `index`: layer * ways + way.
  Way run(ValueId x, int64_t index) const {
    Builder& b = c.b;
    const RecurrentCell& cell = recurrent_cell(kind);
    const auto param = [&](int64_t which) { return params[static_cast<size_t>(index * each + which)]; };
    const ValueId input_weight = param(0), weight = param(1);
    const Dim steps = b.shape(x)[0], rows = b.shape(x)[1], width = b.shape(input_weight)[0];
    std::vector<ValueId> operands{b.reshape(x, {steps * rows, b.shape(x)[2]}), input_weight};
    // What is added to the state's part may as well be added to the input's, but where a gate scales the former.
    if (each == 4) operands.push_back(cell.splits_state ? param(2) : b.add(param(2), param(3)));
    const ValueId gates =
        b.op(Op::kGemm, operands, {{"transA", false}, {"transB", true}, {"alpha", 1.0}, {"beta", 1.0}});
    const auto first = [&](size_t which) {
      return b.squeeze(b.slice(given[which], 0, Dim(index), Dim(index + 1)), {0});
    };
    std::vector<ValueId> inputs{b.reshape(gates, {steps, rows, width}), weight, first(0)};
    if (cell.has_memory) inputs.push_back(first(1));
    if (cell.splits_state && each == 4) {
      inputs.resize(4);
      inputs.push_back(param(3));
    }
    if (lengths) {
      inputs.resize(5);
      inputs.push_back(lengths);
    }
    const NodeId made =
        b.node(Op::kRecurrence, inputs, {{"cell", std::string(cell.name)}, {"reverse", index % ways == 1}});
    const std::vector<ValueId>& results = b.graph().node(made).outputs;
    return {results[0], results[1], results[4]};
  }

  ValueId joined(const std::vector<ValueId>& values, int64_t axis) const {
    return values.size() == 1 ? values[0] : c.b.op(Op::kConcat, values, {{"axis", Dim(axis)}});
  }

  bool lower() {
    if (!is_served()) return false;
    Builder& b = c.b;
    const bool batch_first = c.flag("batch_first");
    const double dropout = c.flag("train") ? c.real("dropout", 0) : 0;
    ValueId x = input;
    if (batch_first) x = b.swap_axes(x, 0, 1);
    std::vector<ValueId> states, memories;
    for (int64_t layer = 0; layer < layers; ++layer) {
      std::vector<ValueId> ys;
      for (int64_t way = 0; way < ways; ++way) {
        const Way made = run(x, layer * ways + way);
        ys.push_back(made.y);
        states.push_back(b.unsqueeze(made.state, {0}));
        if (made.memory) memories.push_back(b.unsqueeze(made.memory, {0}));
      }
      x = joined(ys, 2);
      if (dropout > 0 && layer + 1 < layers)
        x = b.op(Op::kDropout, {x}, {{"ratio", dropout}, {"stream", c.fresh_stream()}});
    }
    if (c.wants(0)) c.result(batch_first ? b.swap_axes(x, 0, 1) : x, 0);
    if (c.wants(1)) c.result(joined(states, 0), 1);
    if (c.wants(2)) c.result(joined(memories, 0), 2);
    return true;
  }

  Call& c;
  CellKind kind;
  ValueId input, lengths;
  std::vector<ValueId> given, params;
  int64_t layers, ways, each;
};

}  // namespace

bool lower_lstm(Call& c) { return LayerCall(c, CellKind::kLstm, "input").lower(); }
bool lower_gru(Call& c) { return LayerCall(c, CellKind::kGru, "input").lower(); }
bool lower_rnn_tanh(Call& c) { return LayerCall(c, CellKind::kTanh, "input").lower(); }
bool lower_rnn_relu(Call& c) { return LayerCall(c, CellKind::kRelu, "input").lower(); }

bool lower_packed_lstm(Call& c) { return LayerCall(c, CellKind::kLstm, "padded").lower(); }
bool lower_packed_gru(Call& c) { return LayerCall(c, CellKind::kGru, "padded").lower(); }
bool lower_packed_rnn_tanh(Call& c) { return LayerCall(c, CellKind::kTanh, "padded").lower(); }
bool lower_packed_rnn_relu(Call& c) { return LayerCall(c, CellKind::kRelu, "padded").lower(); }

bool lower_rnn_tanh_cell(Call& c) { return lower_rnn_cell(c, Op::kTanh); }
bool lower_rnn_relu_cell(Call& c) { return lower_rnn_cell(c, Op::kRelu); }

}  // namespace lowtide
