#include "ir/graph.h"

#include <algorithm>

#include "base/check.h"

namespace lowtide {

std::string to_string(const TensorType& type) { return concat(name(type.dtype), "[", join(type.shape, ", "), "]"); }

const Value& Graph::value(ValueId id) const {
  LT_CHECK(id.valid() && id.at() < values_.size(), "no value with id ", id.index, " in @", name_);
  return values_[id.at()];
}

const Node& Graph::node(NodeId id) const {
  LT_CHECK(id.valid() && id.at() < nodes_.size() && alive_[id.at()], "no node with id ", id.index, " in @", name_);
  return nodes_[id.at()];
}

bool Graph::is_alive(NodeId id) const { return id.valid() && id.at() < nodes_.size() && alive_[id.at()]; }

const GraphInput* Graph::find_input(ValueId id) const {
  const Value& found = value(id);
  return found.producer.valid() ? nullptr : &inputs_[static_cast<size_t>(found.output_index)];
}

bool Graph::is_output(ValueId id) const {
  return std::any_of(outputs_.begin(), outputs_.end(), [&](const GraphOutput& output) { return output.value == id; });
}

NodeId Graph::yield() const {
  for (NodeId id : order_)
    if (is_yield(node(id).op)) return id;
  return {};
}

ValueId Graph::find_value(std::string_view name) const {
  auto at = by_name_.find(name);
  return at == by_name_.end() ? ValueId{} : at->second;
}

std::string Graph::unique_name(std::string_view base) const {
  if (!by_name_.contains(base)) return std::string(base);
  auto at = next_suffix_.try_emplace(std::string(base), 1).first;
  std::string candidate;
  do candidate = concat(base, "_", at->second++);
  while (by_name_.contains(candidate));
  return candidate;
}

ValueId Graph::new_value(std::string name, TensorType type, NodeId producer, int index) {
  const ValueId id{static_cast<int32_t>(values_.size())};
  name = unique_name(name);
  by_name_.emplace(name, id);
  values_.push_back({std::move(name), std::move(type), producer, index, {}});
  return id;
}

ValueId Graph::add_input(std::string name, TensorType type, InputKind kind, bool requires_grad, Shape strides) {
  const ValueId id = new_value(std::move(name), std::move(type), {}, static_cast<int>(inputs_.size()));
  inputs_.push_back({id, kind, requires_grad, std::move(strides)});
  return id;
}

void Graph::add_output(ValueId value, OutputKind kind, ValueId target) { outputs_.push_back({value, kind, target}); }

// "layer_norm" from "LayerNorm": the base of a value's name.
static std::string snake_case(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool upper = c >= 'A' && c <= 'Z';
    if (upper && i > 0 && !(text[i - 1] >= 'A' && text[i - 1] <= 'Z')) result += '_';
    result += upper ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return result;
}

NodeId Graph::add_node(Op op, std::vector<ValueId> inputs, std::vector<TensorType> types, Attrs attrs, Origin origin,
                       NodeId before, std::vector<std::string> names, std::vector<bool> wanted) {
  const NodeId id{static_cast<int32_t>(nodes_.size())};
  Node node;
  node.op = op;
  node.attrs = std::move(attrs);
  node.origin = std::move(origin);
  node.inputs = std::move(inputs);
  for (size_t i = 0; i < types.size(); ++i) {
    if (i < wanted.size() && !wanted[i]) {
      node.outputs.push_back({});
      continue;
    }
    std::string base = i < names.size() && !names[i].empty() ? names[i] : snake_case(lowtide::name(op));
    node.outputs.push_back(new_value(std::move(base), std::move(types[i]), id, static_cast<int>(i)));
  }
  nodes_.push_back(std::move(node));
  alive_.push_back(true);
  for (ValueId input : nodes_.back().inputs)
    if (input) add_use(input, id);
  if (before) {
    auto at = std::find(order_.begin(), order_.end(), before);
    LT_CHECK(at != order_.end(), "insertion point is no live node of @", name_);
    order_.insert(at, id);
  } else {
    order_.push_back(id);
  }
  return id;
}

Node& Graph::edit(NodeId id) {
  LT_CHECK(is_alive(id), "no node with id ", id.index, " in @", name_);
  return nodes_[id.at()];
}

void Graph::rename(ValueId id, std::string name) {
  Value& renamed = values_[id.at()];
  by_name_.erase(renamed.name);
  renamed.name = unique_name(name);
  by_name_.emplace(renamed.name, id);
}

void Graph::set_type(ValueId id, TensorType type) {
  LT_CHECK(id.valid() && id.at() < values_.size(), "no such value");
  values_[id.at()].type = std::move(type);
}

void Graph::add_use(ValueId value, NodeId user) {
  LT_CHECK(value.at() < values_.size(), "operand of a node is no value of @", name_);
  values_[value.at()].users.push_back(user);
}

void Graph::drop_use(ValueId value, NodeId user) {
  std::vector<NodeId>& users = values_[value.at()].users;
  auto at = std::find(users.begin(), users.end(), user);
  LT_CHECK(at != users.end(), "use list of %", values_[value.at()].name, " lacks a user");
  users.erase(at);
}

void Graph::set_operand(NodeId node, size_t index, ValueId value) {
  Node& edited = edit(node);
  LT_CHECK(index < edited.inputs.size(), "operand ", index, " of ", edited.inputs.size());
  if (edited.inputs[index]) drop_use(edited.inputs[index], node);
  edited.inputs[index] = value;
  if (value) add_use(value, node);
}

void Graph::add_operand(NodeId node, ValueId value) {
  edit(node).inputs.push_back(value);
  if (value) add_use(value, node);
}

void Graph::drop_last_operand(NodeId node) {
  std::vector<ValueId>& inputs = edit(node).inputs;
  LT_CHECK(!inputs.empty(), "no operand to drop");
  if (inputs.back()) drop_use(inputs.back(), node);
  inputs.pop_back();
}

ValueId Graph::add_node_output(NodeId node, TensorType type, std::string name) {
  const int index = static_cast<int>(edit(node).outputs.size());
  const ValueId id = new_value(name.empty() ? snake_case(lowtide::name(nodes_[node.at()].op)) : std::move(name),
                               std::move(type), node, index);
  nodes_[node.at()].outputs.push_back(id);
  return id;
}

void Graph::replace_uses(ValueId from, ValueId to) {
  if (from == to) return;
  const std::vector<NodeId> users = value(from).users;
  for (NodeId user : users) {
    Node& node = edit(user);
    for (ValueId& input : node.inputs)
      if (input == from) {
        drop_use(from, user);
        input = to;
        add_use(to, user);
      }
  }
  for (GraphOutput& output : outputs_)
    if (output.value == from) output.value = to;
  if (replacements_) replacements_->note(from, to);
}

void Graph::drop_output(NodeId node, size_t index) {
  ValueId& output = edit(node).outputs.at(index);
  if (!output) return;
  LT_CHECK(value(output).users.empty() && !is_output(output), "%", value(output).name, " is still read");
  by_name_.erase(values_[output.at()].name);
  output = {};
}

void Graph::drop_last_output(NodeId node) {
  std::vector<ValueId>& outputs = edit(node).outputs;
  LT_CHECK(!outputs.empty() && !outputs.back(), "the last output of a node in @", name_, " is still there");
  outputs.pop_back();
}

void Graph::remove(NodeId id) {
  Node& removed = edit(id);
  for (size_t i = 0; i < removed.outputs.size(); ++i) drop_output(id, i);
  for (ValueId input : removed.inputs)
    if (input) drop_use(input, id);
  removed = Node{};
  alive_[id.at()] = false;
  order_.erase(std::find(order_.begin(), order_.end(), id));
}

void Graph::move_before(NodeId node, NodeId before) {
  order_.erase(std::find(order_.begin(), order_.end(), node));
  auto at = std::find(order_.begin(), order_.end(), before);
  LT_CHECK(at != order_.end(), "insertion point is no live node of @", name_);
  order_.insert(at, node);
}

NodeId Graph::add_copy(const Graph& from, NodeId id, std::vector<ValueId> operands) {
  const Node& node = from.node(id);
  std::vector<TensorType> types;
  std::vector<std::string> names;
  std::vector<bool> wanted;
  for (ValueId output : node.outputs) {
    types.push_back(output ? from.type(output) : TensorType{});
    names.push_back(output ? from.value(output).name : "");
    wanted.push_back(output.valid());
  }
  const NodeId copied = add_node(node.op, std::move(operands), std::move(types), node.attrs, node.origin, {},
                                 std::move(names), std::move(wanted));
  edit(copied).target = node.target;
  if (node.body) edit(copied).body = std::make_unique<Graph>(node.body->clone());
  return copied;
}

void Graph::set_order(std::vector<NodeId> order) {
  LT_CHECK(order.size() == order_.size(), "an order of ", order.size(), " nodes for ", order_.size());
  order_ = std::move(order);
}

Graph Graph::clone() const {
  Graph copy(name_);
  copy.values_ = values_;
  copy.alive_ = alive_;
  copy.order_ = order_;
  copy.inputs_ = inputs_;
  copy.outputs_ = outputs_;
  copy.ranges_ = ranges_;
  copy.by_name_ = by_name_;
  copy.next_suffix_ = next_suffix_;
  for (const Node& node : nodes_) {
    Node copied;
    copied.op = node.op;
    copied.target = node.target;
    copied.inputs = node.inputs;
    copied.outputs = node.outputs;
    copied.attrs = node.attrs;
    copied.origin = node.origin;
    if (node.body) copied.body = std::make_unique<Graph>(node.body->clone());
    copy.nodes_.push_back(std::move(copied));
  }
  return copy;
}

}  // namespace lowtide
