// The invariants of docs/ir.md, one function each, under the same numbers.
#include "ir/verify.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/check.h"
#include "base/scanner.h"
#include "ir/data_sizes.h"
#include "ir/print.h"
#include "symbolic/scan_dim.h"

namespace lowtide {

namespace {

std::string_view type_name(AttrType type) {
  constexpr std::string_view kNames[] = {"an int", "a float", "a bool", "a string", "a dtype", "ints", "floats"};
  return kNames[static_cast<size_t>(type)];
}

bool has_type(const Attrs::Value& value, AttrType type) {
  switch (type) {
    case AttrType::kInt: return std::holds_alternative<Dim>(value);
    case AttrType::kFloat: return std::holds_alternative<double>(value);
    case AttrType::kBool: return std::holds_alternative<bool>(value);
    case AttrType::kString: return std::holds_alternative<std::string>(value);
    case AttrType::kDType: return std::holds_alternative<DType>(value);
    case AttrType::kInts: return std::holds_alternative<Shape>(value);
    case AttrType::kFloats: return std::holds_alternative<std::vector<double>>(value);
  }
  return false;
}

// Whether `names` (sorted) hold every symbol of `dim`; the first that is missing otherwise.
std::string unknown_symbol(const Dim& dim, const std::set<std::string>& names) {
  if (dim.is_constant()) return {};
  std::set<std::string> used;
  collect_symbols(dim, used);
  for (const std::string& symbol : used)
    if (!names.contains(symbol)) return symbol;
  return {};
}

class Verifier {
 public:
  Verifier(const Graph& graph, std::set<std::string> outer_symbols)
      : graph_(graph), symbols_(std::move(outer_symbols)) {}

  void run() {
    collect_known_symbols();
    names();
    order_and_operands();
    uses();
    for (NodeId id : graph_.order()) {
      arity(id);
      attributes(id);
      dims_of_attributes(id);
    }
    types();
    made_sizes();
    outputs();
    yield();
    for (NodeId id : graph_.order()) body(id);
  }

 private:
  template <class... Pieces>
  void check(bool holds, std::string_view invariant, const Pieces&... pieces) const {
    LT_USER_CHECK(ErrorKind::kInvalidGraph, holds, "graph @", graph_.name(), " breaks ", invariant, ": ", pieces...);
  }
  // What a message calls it, written only where one is.
  struct OfNode {
    const Graph& graph;
    NodeId id;
    friend std::ostream& operator<<(std::ostream& out, const OfNode& it) {
      for (ValueId output : it.graph.node(it.id).outputs)
        if (output) return out << "%" << it.graph.value(output).name << " = " << describe(it.graph, it.id);
      return out << describe(it.graph, it.id);
    }
  };
  struct OfValue {
    const Graph& graph;
    ValueId id;
    friend std::ostream& operator<<(std::ostream& out, const OfValue& it) {
      if (!it.id.valid() || it.id.at() >= it.graph.value_count()) return out << "of unknown id";
      return out << "%" << it.graph.value(it.id).name;
    }
  };
  OfNode at(NodeId id) const { return {graph_, id}; }
  OfValue at(ValueId id) const { return {graph_, id}; }
  bool exists(ValueId id) const { return id.valid() && id.at() < graph_.value_count(); }

  // A value that is an input, or an output that its live producer still has.
  bool is_live(ValueId id) const {
    if (!exists(id)) return false;
    const Value& value = graph_.value(id);
    const auto index = static_cast<size_t>(value.output_index);
    if (!value.producer) return index < graph_.inputs().size() && graph_.inputs()[index].value == id;
    if (!graph_.is_alive(value.producer)) return false;
    const Node& node = graph_.node(value.producer);
    return index < node.outputs.size() && node.outputs[index] == id;
  }

  // I1
  void order_and_operands() {
    std::vector<bool> defined(graph_.value_count());
    for (const GraphInput& input : graph_.inputs()) {
      check(is_live(input.value), "I1", "an input has no value");
      defined[input.value.at()] = true;
    }
    std::vector<bool> seen(graph_.node_capacity());
    for (NodeId id : graph_.order()) {
      check(graph_.is_alive(id) && !seen[id.at()], "I1", "the order holds a removed node, or one twice");
      seen[id.at()] = true;
      const Node& node = graph_.node(id);
      for (ValueId input : node.inputs)
        if (input)
          check(exists(input) && defined[input.at()], "I1", "operand ", at(input), " of ", at(id),
                " is not defined before it");
      for (size_t i = 0; i < node.outputs.size(); ++i) {
        const ValueId output = node.outputs[i];
        if (!output) continue;
        check(exists(output) && graph_.value(output).producer == id &&
                  graph_.value(output).output_index == static_cast<int>(i),
              "I1", "output ", i, " of ", at(id), " names another producer");
        defined[output.at()] = true;
      }
    }
    for (size_t i = 0; i < graph_.node_capacity(); ++i)
      check(seen[i] || !graph_.is_alive({static_cast<int32_t>(i)}), "I1", "a node is missing from the order");
  }

  // I2
  void names() const {
    std::set<std::string_view> names;
    for (size_t i = 0; i < graph_.value_count(); ++i) {
      const ValueId id{static_cast<int32_t>(i)};
      if (!is_live(id)) continue;
      const std::string& name = graph_.value(id).name;
      check(!name.empty(), "I2", "a value has no name");
      check(names.insert(name).second, "I2", "two values are called %", name);
    }
  }

  // I3
  void uses() const {
    std::vector<std::vector<NodeId>> users(graph_.value_count());
    for (NodeId id : graph_.order())
      for (ValueId input : graph_.node(id).inputs)
        if (input) users[input.at()].push_back(id);
    for (size_t i = 0; i < users.size(); ++i) {
      const ValueId id{static_cast<int32_t>(i)};
      std::vector<NodeId> listed = graph_.value(id).users;
      std::sort(listed.begin(), listed.end());
      std::sort(users[i].begin(), users[i].end());
      check(listed == users[i], "I3", at(id), " lists ", listed.size(), " uses, nodes read it ", users[i].size(),
            " times, or other nodes do");
      check(listed.empty() || is_live(id), "I3", at(id), " is read and nobody makes it");
    }
  }

  // I4
  void arity(NodeId id) const {
    const Node& node = graph_.node(id);
    const OpInfo& op = info(node.op);
    const auto within = [](size_t count, int low, int high) {
      return static_cast<int>(count) >= low && static_cast<int>(count) <= high;
    };
    const auto range = [](int low, int high) { return low == high ? concat(low) : concat(low, " to ", high); };
    check(within(node.inputs.size(), op.min_inputs, op.max_inputs), "I4", at(id), " has ", node.inputs.size(),
          " operands, expected ", range(op.min_inputs, op.max_inputs));
    check(within(node.outputs.size(), op.min_outputs, op.max_outputs), "I4", at(id), " has ", node.outputs.size(),
          " outputs, expected ", range(op.min_outputs, op.max_outputs));
    for (size_t i = 0; i < node.inputs.size() && static_cast<int>(i) < op.min_inputs; ++i)
      check(node.inputs[i].valid(), "I4", "operand ", i, " of ", at(id), " is absent and not optional");
  }

  // I5
  void attributes(NodeId id) const {
    const Node& node = graph_.node(id);
    check(is_call(node.op) ? !node.target.empty() : node.target.empty() || is_call_gradient(node.op), "I5", at(id),
          is_call(node.op) ? " does not say what it calls" : " is no call and has a target");
    for (const auto& [name, value] : node.attrs)
      check(is_identifier(name), "I5", "attribute '", name, "' of ", at(id), " is no identifier");
    if (is_call(node.op)) return;
    const std::span<const AttrSchema> schemas = info(node.op).attrs;
    for (const AttrSchema& schema : schemas) {
      const Attrs::Value* value = node.attrs.find(schema.name);
      check(value || !schema.required, "I5", at(id), " lacks the attribute ", schema.name);
      check(!value || has_type(*value, schema.type), "I5", "attribute ", schema.name, " of ", at(id), " is not ",
            type_name(schema.type));
    }
    for (const auto& [name, value] : node.attrs)
      check(std::any_of(schemas.begin(), schemas.end(), [&](const AttrSchema& schema) { return schema.name == name; }),
            "I5", at(id), " has the unknown attribute ", name);
  }

  // I6
  void outputs() const {
    std::set<std::pair<OutputKind, ValueId>> targets;
    for (const GraphOutput& output : graph_.outputs()) {
      check(is_live(output.value), "I6", "an output refers to no value");
      if (output.kind == OutputKind::kOutput) {
        check(!output.target, "I6", "the output ", at(output.value), " has a target");
        continue;
      }
      const bool update = output.kind == OutputKind::kUpdate;
      const char* what = update ? "update" : "gradient";
      check(exists(output.target) && is_live(output.target) && graph_.find_input(output.target), "I6", "the ", what,
            " ", at(output.value), " is of no graph input");
      check(graph_.type(output.value) == graph_.type(output.target), "I6", "the ", what, " ", at(output.value), " is ",
            to_string(graph_.type(output.value)), ", its target ", at(output.target), " is ",
            to_string(graph_.type(output.target)));
      check(targets.emplace(output.kind, output.target).second, "I6", at(output.target), " has two ", what, "s");
      check(update || takes_gradient(graph_.type(output.target).dtype), "I6", "the gradient of ", at(output.target),
            ", which is not floating");
    }
  }

  // I7
  void yield() const {
    const NodeId id = graph_.yield();
    std::vector<bool> is_backward(graph_.node_capacity());
    bool after = false;
    for (NodeId node : graph_.order()) {
      check(node == id || !is_yield(graph_.node(node).op), "I7", "a second YieldOp");
      is_backward[node.at()] = after;
      after = after || node == id;
    }
    for (const GraphOutput& output : graph_.outputs()) {
      if (output.kind == OutputKind::kGradient)
        check(id.valid(), "I7", "the gradient ", at(output.value), " in a graph without YieldOp");
      if (output.kind == OutputKind::kOutput)
        check(!id.valid(), "I7", "the output ", at(output.value), " beside a YieldOp, whose operands are the outputs");
      const NodeId producer = graph_.value(output.value).producer;
      if (output.kind == OutputKind::kUpdate && producer)
        check(producer != id && !is_backward[producer.at()], "I7", "the update ", at(output.value),
              " is made by backward");
    }
    if (!id) return;
    const Node& node = graph_.node(id);
    const Shape& grads = node.attrs.ints("grads");
    check(grads.size() == node.outputs.size(), "I7", "YieldOp has ", node.outputs.size(), " outputs and ", grads.size(),
          " entries in grads");
    std::set<int64_t> seen;
    for (size_t i = 0; i < grads.size(); ++i) {
      check(grads[i].is_constant() && grads[i].constant() >= 0 &&
                grads[i].constant() < static_cast<int64_t>(node.inputs.size()) &&
                seen.insert(grads[i].constant()).second,
            "I7", "grads of YieldOp: entry ", grads[i], " is no operand, or one twice");
      const ValueId operand = node.inputs[static_cast<size_t>(grads[i].constant())];
      if (!node.outputs[i]) continue;
      check(operand && graph_.type(operand) == graph_.type(node.outputs[i]), "I7", at(node.outputs[i]),
            " has another type than the output that it is the gradient of");
    }
  }

  // I8
  void body(NodeId id) const {
    const Node& node = graph_.node(id);
    check(owns_body(node.op) == (node.body != nullptr), "I8", at(id),
          node.body ? " has a body and is no FusedGroup" : " has no body");
    if (!node.body) return;
    const Graph& inner = *node.body;
    check(inner.inputs().size() == node.inputs.size() && inner.outputs().size() == node.outputs.size(), "I8",
          "the body of ", at(id), " has ", inner.inputs().size(), " inputs and ", inner.outputs().size(), " outputs");
    Verifier(inner, symbols_).run();
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      check(inner.inputs()[i].kind == InputKind::kInput, "I8", "input ", i, " of the body of ", at(id),
            " is not of kind input");
      check(node.inputs[i] && graph_.type(node.inputs[i]) == inner.type(inner.inputs()[i].value), "I8", "input ", i,
            " of the body of ", at(id), " has another type than the operand");
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      check(inner.outputs()[i].kind == OutputKind::kOutput, "I8", "output ", i, " of the body of ", at(id),
            " is not of kind output");
      check(!node.outputs[i] || graph_.type(node.outputs[i]) == inner.type(inner.outputs()[i].value), "I8", "output ",
            i, " of the body of ", at(id), " has another type");
    }
    check(!inner.yield(), "I8", "the body of ", at(id), " has a YieldOp");
  }

  // I9
  void collect_known_symbols() {
    for (const GraphInput& input : graph_.inputs()) {
      if (!exists(input.value)) continue;
      for (const Dim& dim : graph_.type(input.value).shape) collect_symbols(dim, symbols_);
    }
    for (const auto& [symbol, range] : graph_.ranges()) {
      check(range.low <= range.high, "I9", "the range of ", symbol, " is empty");
      symbols_.insert(symbol);
    }
    for (const DataSize& size : data_sizes(graph_)) symbols_.insert(size.symbol);
    for (const std::string& symbol : symbols_)
      check(is_identifier(symbol) && !is_reserved_word(symbol), "I9", "'", symbol, "' is no name of a symbol");
  }
  template <class... Where>
  void known(const Dim& dim, const Where&... where) const {
    const std::string symbol = unknown_symbol(dim, symbols_);
    check(symbol.empty(), "I9", "the symbol ", symbol, " of ", where..., " is no input's and has no range");
  }
  void dims_of_attributes(NodeId id) const {
    for (const auto& [name, value] : graph_.node(id).attrs) {
      const Dim* single = std::get_if<Dim>(&value);
      const Shape* list = std::get_if<Shape>(&value);
      if (single && !single->is_constant()) known(*single, "attribute ", name, " of ", at(id));
      if (!list) continue;
      for (const Dim& dim : *list)
        if (!dim.is_constant()) known(dim, "attribute ", name, " of ", at(id));
    }
  }

  // I9: a size that a node makes is named behind it alone.
  void made_sizes() const {
    std::set<std::string> pending;
    for (const DataSize& size : data_sizes(graph_))
      check(pending.insert(size.symbol).second, "I9", "two nodes make the size ", size.symbol);
    if (pending.empty()) return;
    const auto check_dim = [&](const Dim& dim, NodeId id) {
      std::set<std::string> used;
      collect_symbols(dim, used);
      for (const std::string& symbol : used)
        check(!pending.contains(symbol), "I9", at(id), " names the size ", symbol, " before a node makes it");
    };
    for (NodeId id : graph_.order()) {
      const Node& node = graph_.node(id);
      for (ValueId output : node.outputs)
        if (output)
          for (const Dim& dim : graph_.type(output).shape) check_dim(dim, id);
      for (const auto& [name, value] : node.attrs) {
        if (const Dim* single = std::get_if<Dim>(&value)) check_dim(*single, id);
        if (const Shape* list = std::get_if<Shape>(&value))
          for (const Dim& dim : *list) check_dim(dim, id);
      }
      if (makes_size(node.op)) pending.erase(node.attrs.s("symbol"));
    }
  }

  // I9, I10
  void types() const {
    for (size_t i = 0; i < graph_.value_count(); ++i) {
      const ValueId id{static_cast<int32_t>(i)};
      if (!is_live(id)) continue;
      for (const Dim& dim : graph_.type(id).shape) {
        if (dim.is_constant()) {
          check(dim.constant() >= 0, "I10", at(id), " has the size ", dim);
        } else {
          known(dim, at(id));
        }
      }
    }
    for (const GraphInput& input : graph_.inputs()) {
      check(input.strides.empty() || input.strides.size() == graph_.type(input.value).shape.size(), "I10",
            at(input.value), " has ", input.strides.size(), " strides and ", graph_.type(input.value).shape.size(),
            " dims");
      check(!input.requires_grad || takes_gradient(graph_.type(input.value).dtype), "I10", at(input.value), " is ",
            name(graph_.type(input.value).dtype), " and requires a gradient");
      for (const Dim& stride : input.strides) {
        check(!stride.is_constant() || stride.constant() >= 0, "I10", at(input.value), " has the stride ", stride);
        known(stride, at(input.value));
      }
    }
  }

  const Graph& graph_;
  std::set<std::string> symbols_;
};

}  // namespace

void verify(const Graph& graph) { Verifier(graph, {}).run(); }

}  // namespace lowtide
