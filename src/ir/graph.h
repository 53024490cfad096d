// The graph: vectors of values and nodes addressed by strong ids, edited through a few methods that keep use lists
// right.
//
// A forward graph is inputs → nodes → outputs. A training graph has one YieldOp between forward and backward: its
// inputs are the module's outputs, its outputs their incoming gradients. The text form (print.h, parse.h) holds all of
// it.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "ir/replacements.h"
#include "opset/attrs.h"
#include "opset/op.h"
#include "symbolic/dim.h"

namespace lowtide {

using Attrs = AttrList<Dim>;

struct TensorType {
  DType dtype = DType::kF32;
  Shape shape;
  friend bool operator==(const TensorType&, const TensorType&) = default;
};
std::string to_string(const TensorType& type);  // "f32[batch, 768]"

// Where a node comes from: errors, traces and reports name it.
enum class OriginKind { kForward, kGradient, kRecompute, kFused };
struct Origin {
  std::string module;  // path of the innermost module ("transformer.h.0.attn"); empty at the top
  std::string line;    // the user's line ("model.py:41"); empty if unknown
  OriginKind kind = OriginKind::kForward;
  std::string note;  // what was fused or absorbed ("BiasGelu+Dropout"); empty else
  friend bool operator==(const Origin&, const Origin&) = default;
};

struct Value {
  std::string name;  // unique in its graph, without '%'
  TensorType type;
  NodeId producer;            // none: a graph input
  int output_index = 0;       // among the producer's outputs, or among the graph's inputs
  std::vector<NodeId> users;  // one entry per operand that reads it (with repetition); graph outputs are not listed
};

class Graph;

struct Node {
  Op op{};
  std::string target;            // of Aten and PythonOp: what is called
  std::vector<ValueId> inputs;   // an invalid id: an absent optional operand
  std::vector<ValueId> outputs;  // an invalid id: an output that nobody wants
  Attrs attrs;
  Origin origin;
  std::unique_ptr<Graph> body;  // FusedGroup: inputs and outputs correspond to the node's
};

enum class InputKind { kInput, kParam, kBuffer, kConstant };
struct GraphInput {
  ValueId value;
  InputKind kind = InputKind::kInput;
  bool requires_grad = false;
  Shape strides;  // in elements; empty: row-major
};

enum class OutputKind {
  kOutput,    // an output of the module (forward graphs; in a training graph YieldOp's inputs are the outputs)
  kUpdate,    // the new value of the buffer (or mutated input) `target`, written back after forward
  kGradient,  // the gradient of the input `target`
};
struct GraphOutput {
  ValueId value;
  OutputKind kind = OutputKind::kOutput;
  ValueId target;  // of kUpdate and kGradient
};

class Graph {
 public:
  Graph() = default;
  explicit Graph(std::string name) : name_(std::move(name)) {}
  Graph(Graph&&) = default;
  Graph& operator=(Graph&&) = default;
  Graph clone() const;

  const std::string& name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }
  DimRanges& ranges() { return ranges_; }
  const DimRanges& ranges() const { return ranges_; }

  // ---- reading
  const Value& value(ValueId id) const;
  const TensorType& type(ValueId id) const { return value(id).type; }
  const Node& node(NodeId id) const;
  bool is_alive(NodeId id) const;
  size_t value_count() const { return values_.size(); }
  size_t node_capacity() const { return nodes_.size(); }  // ids of removed nodes are never reused
  // Live nodes in topological order.
  const std::vector<NodeId>& order() const { return order_; }
  const std::vector<GraphInput>& inputs() const { return inputs_; }
  std::vector<GraphInput>& inputs() { return inputs_; }
  const std::vector<GraphOutput>& outputs() const { return outputs_; }
  // The input record of a value, or nullptr.
  const GraphInput* find_input(ValueId id) const;
  bool is_output(ValueId id) const;
  NodeId yield() const;  // the YieldOp, or none
  ValueId find_value(std::string_view name) const;

  // ---- building
  ValueId add_input(std::string name, TensorType type, InputKind kind, bool requires_grad = false, Shape strides = {});
  void add_output(ValueId value, OutputKind kind = OutputKind::kOutput, ValueId target = {});
  void set_outputs(std::vector<GraphOutput> outputs) { outputs_ = std::move(outputs); }
  // Appends a node (or inserts it before `before`); one output value per type. A name that is taken gets a suffix; an
  // empty one is derived from the op. `wanted[i] == false` leaves output i invalid; empty: all wanted.
  NodeId add_node(Op op, std::vector<ValueId> inputs, std::vector<TensorType> types, Attrs attrs = {},
                  Origin origin = {}, NodeId before = {}, std::vector<std::string> names = {},
                  std::vector<bool> wanted = {});
  // Appends a node of another graph with these operands: its op, attributes and origin, the types and names of its
  // outputs.
  NodeId add_copy(const Graph& from, NodeId id, std::vector<ValueId> operands);
  std::string unique_name(std::string_view base) const;

  // ---- editing
  Node& edit(NodeId id);  // attributes, target, origin, body; operands only through the methods below
  void rename(ValueId id, std::string name);
  void set_type(ValueId id, TensorType type);
  void set_operand(NodeId node, size_t index, ValueId value);
  // Appends an operand or output to a node.
  void add_operand(NodeId node, ValueId value);
  void drop_last_operand(NodeId node);
  ValueId add_node_output(NodeId node, TensorType type, std::string name = {});
  // Every user of `from`, and the graph outputs (not the target of updates), read `to` instead.
  void replace_uses(ValueId from, ValueId to);
  // replace_uses writes into `replacements` (nullptr: nowhere) from now on. Clones do not.
  void follow(Replacements* replacements) { replacements_ = replacements; }
  // An output that nobody reads becomes invalid.
  void drop_output(NodeId node, size_t index);
  // The last output, invalid already, loses its place too.
  void drop_last_output(NodeId node);
  // The node's outputs must be unused (or invalid).
  void remove(NodeId id);
  // Moves a node before another; the caller keeps the order topological (verify checks).
  void move_before(NodeId node, NodeId before);
  // Replaces the whole order with a permutation of it.
  void set_order(std::vector<NodeId> order);

 private:
  void add_use(ValueId value, NodeId user);
  void drop_use(ValueId value, NodeId user);
  ValueId new_value(std::string name, TensorType type, NodeId producer, int index);

  std::string name_ = "graph";
  // Deques: references to values and nodes stay valid while nodes are added.
  std::deque<Value> values_;
  std::deque<Node> nodes_;
  std::vector<bool> alive_;
  std::vector<NodeId> order_;
  std::vector<GraphInput> inputs_;
  std::vector<GraphOutput> outputs_;
  DimRanges ranges_;
  std::map<std::string, ValueId, std::less<>> by_name_;
  Replacements* replacements_ = nullptr;
  mutable std::map<std::string, int, std::less<>> next_suffix_;
};

}  // namespace lowtide
