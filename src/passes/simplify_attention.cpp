#include "passes/simplify_attention.h"

#include <algorithm>

#include "ops/index_form.h"
#include "passes/rewrite.h"

namespace lowtide {

namespace {

constexpr size_t kKey = 1, kValue = 2, kMask = 3, kBias = 4;

bool has_operand(const Node& node, size_t at) { return node.inputs.size() > at && node.inputs[at].valid(); }
bool has_mask(const Node& node) { return has_operand(node, kMask); }

// Writes in the note what the attention absorbs, in front of what it did before.
void note_absorbed(Graph& graph, NodeId id, const std::vector<NodeId>& nodes) {
  Origin& origin = graph.edit(id).origin;
  if (origin.kind == OriginKind::kForward) origin.kind = OriginKind::kFused;
  std::string note;
  for (NodeId each : graph.order())
    if (std::find(nodes.begin(), nodes.end(), each) != nodes.end()) note += concat(name(graph.node(each).op), "+");
  origin.note = note + (origin.note.empty() ? std::string(name(Op::kAttention)) : origin.note);
}

// The nodes that compute a mask out of positions.
std::vector<NodeId> index_arithmetic(const Graph& graph, ValueId mask) {
  std::vector<NodeId> found;
  std::vector<ValueId> open = {mask};
  while (!open.empty()) {
    const Value& value = graph.value(open.back());
    open.pop_back();
    const NodeId id = is_float(value.type.dtype) ? NodeId{} : value.producer;
    if (!id || graph.node(id).op == Op::kConstant || std::find(found.begin(), found.end(), id) != found.end()) continue;
    found.push_back(id);
    for (ValueId input : graph.node(id).inputs)
      if (input) open.push_back(input);
  }
  return found;
}

// A mask or bias broadcast by Expand → what it was before
bool narrow(Graph& graph, NodeId id, size_t at) {
  if (!has_operand(graph.node(id), at)) return false;
  const NodeId expand = producer(graph, operand(graph, id, at), Op::kExpand);
  if (!expand || graph.type(operand(graph, expand, 0)).shape.empty()) return false;
  note_absorbed(graph, id, {expand});
  graph.set_operand(id, at, operand(graph, expand, 0));
  return true;
}

// A mask that is the sum of two smaller ones → the two: the kernels add them up as they go.
bool split_mask(Graph& graph, NodeId id) {
  if (!has_mask(graph.node(id)) || has_operand(graph.node(id), kBias)) return false;
  const ValueId mask = operand(graph, id, kMask);
  const NodeId sum = producer(graph, mask, Op::kAdd);
  if (!sum) return false;
  const ValueId terms[2] = {operand(graph, sum, 0), operand(graph, sum, 1)};
  for (ValueId term : terms)
    if (graph.type(term).shape.empty() || graph.type(term).shape == graph.type(mask).shape) return false;
  note_absorbed(graph, id, {sum});
  graph.set_operand(id, kMask, terms[0]);
  graph.add_operand(id, terms[1]);
  return true;
}

// All true → no mask; true exactly where key <= query → causal
bool name_mask(Graph& graph, IndexForms& forms, NodeId id) {
  if (!has_mask(graph.node(id))) return false;
  const ValueId mask = operand(graph, id, kMask);
  const Truth* truth = forms.truth(mask);
  if (!truth || truth->kind == Truth::kFalse) return false;
  if (truth->kind == Truth::kWhereNotPositive) {
    IndexForm causal = {0, std::vector<Dim>(truth->form.strides.size())};
    if (causal.strides.size() < 2) return false;
    causal.strides.end()[-2] = -1;
    causal.strides.end()[-1] = 1;
    if (truth->form != causal) return false;
    graph.edit(id).attrs.set("is_causal", true);
  }
  note_absorbed(graph, id, index_arithmetic(graph, mask));
  graph.drop_last_operand(id);
  return true;
}

// [B, Hk, T, E] if `value` repeats each of its heads for a group: Reshape(Expand(x[B, Hk, 1, T, E])). The three nodes
// go to `repeat`.
ValueId before_repeat(const Graph& graph, ValueId value, std::vector<NodeId>& repeat) {
  const NodeId reshape = producer(graph, value, Op::kReshape);
  const NodeId expand = reshape ? producer(graph, operand(graph, reshape, 0), Op::kExpand) : NodeId{};
  const NodeId unsqueeze =
      expand ? producer(graph, operand(graph, expand, 0), {Op::kUnsqueeze, Op::kReshape}) : NodeId{};
  if (!unsqueeze) return {};
  const ValueId x = operand(graph, unsqueeze, 0);
  const Shape &from = graph.type(x).shape, &wide = graph.type(graph.node(expand).outputs[0]).shape,
              &to = graph.type(value).shape;
  if (from.size() != 4 || wide.size() != 5 || to.size() != 4) return {};
  const Shape single = {from[0], from[1], 1, from[2], from[3]};
  const Shape repeated = {from[0], from[1], wide[2], from[2], from[3]};
  if (graph.type(operand(graph, expand, 0)).shape != single || wide != repeated) return {};
  if (to != Shape{from[0], from[1] * wide[2], from[2], from[3]}) return {};
  repeat.insert(repeat.end(), {unsqueeze, expand, reshape});
  return x;
}

// Keys and values repeated for groups of heads → the heads that there are
bool group_heads(Graph& graph, NodeId id) {
  std::vector<NodeId> repeats;
  const ValueId key = before_repeat(graph, operand(graph, id, kKey), repeats);
  const ValueId value = before_repeat(graph, operand(graph, id, kValue), repeats);
  if (!key || !value || graph.type(key).shape[1] != graph.type(value).shape[1]) return false;
  note_absorbed(graph, id, repeats);
  graph.set_operand(id, kKey, key);
  graph.set_operand(id, kValue, value);
  return true;
}

}  // namespace

bool simplify_attention(Graph& graph) {
  IndexForms forms(graph);
  return rewrite_nodes(graph, 3, [&](NodeId id) {
    const Node& node = graph.node(id);
    if (node.op != Op::kAttention) return false;
    const bool named = !node.attrs.b("is_causal") && name_mask(graph, forms, id);
    const bool narrowed = narrow(graph, id, kMask);
    const bool split = split_mask(graph, id);
    const bool narrowed_bias = narrow(graph, id, kBias);
    const bool grouped = group_heads(graph, id);
    return named || narrowed || split || narrowed_bias || grouped;
  });
}

}  // namespace lowtide
