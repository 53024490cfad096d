#include "passes/pack_attention_grad.h"

#include <optional>

#include "ops/packed_heads.h"
#include "passes/rewrite.h"

namespace lowtide {

namespace {

constexpr size_t kParts = 3, kMaskGrad = 3;

// What a chain of views shows, whose values nobody else reads.
struct Viewed {
  ValueId base;
  std::vector<NodeId> views;  // from the base on
};

Viewed viewed_by_one(const Graph& graph, ValueId value) {
  Viewed result{value, {}};
  const auto is_read_once = [&](ValueId each) { return graph.value(each).users.size() == 1 && !graph.is_output(each); };
  while (is_read_once(result.base)) {
    const NodeId producer = graph.value(result.base).producer;
    if (!producer || !is_view(graph.node(producer).op)) return result;
    result.views.insert(result.views.begin(), producer);
    result.base = graph.node(producer).inputs[0];
  }
  return {};
}

// The gradient whose dq, dk and dv these are, in that order; none if they are not.
NodeId gradient_of(const Graph& graph, const std::array<Viewed, kParts>& parts) {
  if (!parts[0].base) return {};
  const NodeId id = graph.value(parts[0].base).producer;
  if (!id || graph.node(id).op != Op::kAttentionGrad || graph.node(id).attrs.has("packed")) return {};
  const Node& node = graph.node(id);
  const Shape& heads = graph.type(node.inputs[1]).shape;
  for (size_t i = 0; i < kParts; ++i)
    if (parts[i].base != node.outputs[i] || graph.type(node.inputs[1 + i]).shape != heads) return {};
  return id;
}

// How the concatenation shows a tensor whose parts its operands show so; nothing where they do not lie in its order.
std::optional<Strided> joined(const Graph& graph, const Node& concat, const std::array<Strided, kParts>& operands) {
  const Shape& shape = graph.type(concat.outputs[0]).shape;
  const size_t axis = static_cast<size_t>(concat.attrs.i("axis"));
  Strided all = operands[0];
  const auto size_of = [&](size_t operand) { return graph.type(concat.inputs[operand]).shape[axis]; };
  if (size_of(0).is(1)) all.strides[axis] = operands[1].offset - operands[0].offset;
  Dim before = 0;
  for (size_t i = 0; i < kParts; ++i) {
    Shape strides = operands[i].strides;
    if (size_of(i).is(1)) strides[axis] = all.strides[axis];
    if (!(operands[i].offset == all.offset + before * all.strides[axis])) return std::nullopt;
    if (!same_strides(shape, strides, all.strides)) return std::nullopt;
    before = before + size_of(i);
  }
  return all;
}

// The dims in the order in which they lie, the outermost first; nothing where their elements are not without gaps.
std::optional<std::vector<int64_t>> memory_order(const Shape& shape, const Shape& strides) {
  std::vector<int64_t> order;
  std::vector<bool> done(shape.size());
  Dim expected = 1;
  while (order.size() < shape.size()) {
    size_t next = shape.size();
    // The last one that fits: dims of one element keep their place where they can.
    for (size_t i = shape.size(); i-- > 0 && next == shape.size();)
      if (!done[i] && (shape[i].is(1) || strides[i] == expected)) next = i;
    if (next == shape.size()) return std::nullopt;
    done[next] = true;
    expected = expected * shape[next];
    order.insert(order.begin(), static_cast<int64_t>(next));
  }
  return order;
}

// `packed` as the shape whose dims lie in it in this order.
ValueId view_in_order(Builder& builder, ValueId packed, const Shape& shape, const std::vector<int64_t>& order) {
  Shape lying;
  std::vector<int64_t> perm(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    lying.push_back(shape[static_cast<size_t>(order[i])]);
    perm[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  return builder.transpose(builder.reshape(packed, lying), perm);
}

// Whether the views behind `value` show its bytes as they lie in `lies`, so that none of them copies.
bool can_be_viewed(const Graph& graph, ValueId value, Strided lies) {
  while (graph.value(value).users.size() == 1) {
    const Node& user = graph.node(graph.value(value).users[0]);
    if (!is_view(user.op) || !user.outputs[0]) return true;
    const std::optional<Strided> shown = view_of(graph, user, lies);
    if (!shown) return false;
    lies = *shown;
    value = user.outputs[0];
  }
  return true;
}

// A form of the packed gradients that the concatenation is a view of.
struct Form {
  int64_t axis;
  std::vector<int64_t> order;  // of the concatenation's dims, as they lie
  bool is_good;                // so are the views of it that follow
};

std::optional<Form> form_along(const Graph& graph, const Node& concat, const std::array<Viewed, kParts>& parts,
                               int64_t axis) {
  std::array<Strided, kParts> shown = parts_of_packed_heads(packed_heads(graph.type(parts[0].base).shape, axis), axis);
  for (size_t i = 0; i < kParts; ++i)
    for (NodeId view : parts[i].views) {
      const std::optional<Strided> next = view_of(graph, graph.node(view), shown[i]);
      if (!next) return std::nullopt;
      shown[i] = *next;
    }
  const std::optional<Strided> whole = joined(graph, concat, shown);
  if (!whole || !whole->offset.is(0)) return std::nullopt;
  std::optional<std::vector<int64_t>> order = memory_order(graph.type(concat.outputs[0]).shape, whole->strides);
  if (!order) return std::nullopt;
  return Form{axis, std::move(*order), can_be_viewed(graph, concat.outputs[0], *whole)};
}

bool pack_at(Graph& graph, NodeId id) {
  const Node& concat = graph.node(id);
  if (concat.op != Op::kConcat || concat.inputs.size() != kParts) return false;
  std::array<Viewed, kParts> parts;
  for (size_t i = 0; i < kParts; ++i) parts[i] = viewed_by_one(graph, concat.inputs[i]);
  const NodeId grad = gradient_of(graph, parts);
  if (!grad) return false;
  std::optional<Form> form;
  for (const int64_t axis : {2, 3})
    if (!form || !form->is_good)
      if (std::optional<Form> found = form_along(graph, concat, parts, axis); found && (found->is_good || !form))
        form = std::move(found);
  if (!form) return false;

  const ValueId result = concat.outputs[0], mask_grad = graph.node(grad).outputs[kMaskGrad];
  Attrs attrs = graph.node(grad).attrs;
  attrs.set("packed", form->axis);
  Builder builder = before(graph, grad);
  builder.named(graph.value(result).name);
  const NodeId node =
      builder.node(Op::kAttentionGrad, graph.node(grad).inputs, attrs, {true, false, false, mask_grad.valid()});
  const Shape shape = graph.type(result).shape;
  const ValueId view = view_in_order(builder, graph.node(node).outputs[0], shape, form->order);
  replace_keeping_name(graph, result, view);
  if (mask_grad) graph.replace_uses(mask_grad, graph.node(node).outputs[kMaskGrad]);
  return true;
}

}  // namespace

bool pack_attention_grad(Graph& graph) {
  return rewrite_nodes(graph, 1, [&](NodeId id) { return pack_at(graph, id); });
}

}  // namespace lowtide
