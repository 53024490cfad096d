#include "passes/rewrite.h"

#include <algorithm>

namespace lowtide {

bool is_module_output(const Graph& graph, ValueId value) {
  const std::vector<NodeId>& users = graph.value(value).users;
  return graph.is_output(value) ||
         std::any_of(users.begin(), users.end(), [&](NodeId user) { return graph.node(user).op == Op::kYieldOp; });
}

bool may_replace(const Graph& graph, ValueId from, ValueId to) {
  if (!is_module_output(graph, from)) return true;
  const ValueId base = base_of_views(graph, to);
  // Bytes that were already shared may stay so.
  if (base == base_of_views(graph, from)) return to != base || !is_module_output(graph, to);
  return graph.value(base).producer.valid() && base == to && !is_module_output(graph, to) &&
         std::none_of(graph.value(to).users.begin(), graph.value(to).users.end(),
                      [&](NodeId user) { return is_view(graph.node(user).op); });
}

bool is_inspected(const Graph& graph, ValueId value) {
  const std::vector<NodeId>& users = graph.value(value).users;
  return std::any_of(users.begin(), users.end(), [&](NodeId user) { return graph.node(user).op == Op::kInspect; });
}

NodeId producer(const Graph& graph, ValueId value, std::initializer_list<Op> ops, bool of_inspected) {
  if (!value) return {};
  const NodeId id = graph.value(value).producer;
  if (!id || std::find(ops.begin(), ops.end(), graph.node(id).op) == ops.end()) return {};
  return of_inspected || !is_inspected(graph, value) ? id : NodeId{};
}

static std::optional<Uniform> of_constant(const Node& node) {
  Uniform result;
  result.dtype = node.attrs.t("dtype");
  if (is_float(result.dtype)) {
    if (!node.attrs.has("value")) return std::nullopt;
    result.value = node.attrs.f("value");
  } else {
    if (!node.attrs.has("int_value")) return std::nullopt;
    result.integer = node.attrs.dim("int_value");
  }
  return result;
}

static std::optional<Uniform> cast(const Uniform& from, DType to) {
  Uniform result;
  result.dtype = to;
  if (from.dtype == to) return from;
  if (is_float(from.dtype) && (to == DType::kF32 || to == DType::kF64)) {
    result.value = to == DType::kF32 || from.dtype == DType::kF32 ? static_cast<float>(from.value) : from.value;
    return result;
  }
  if (is_float(from.dtype) || !from.integer.is_constant()) return std::nullopt;
  const int64_t number = from.integer.constant();
  if (to == DType::kBool) {
    result.integer = number != 0;
  } else if (to == DType::kI64) {
    result.integer = number;
  } else if (to == DType::kF32 || to == DType::kF64) {
    if (number > (1 << 24) || number < -(1 << 24)) return std::nullopt;
    result.value = static_cast<double>(number);
  } else {
    return std::nullopt;
  }
  return result;
}

std::optional<Uniform> uniform(const Graph& graph, ValueId value) {
  const NodeId id = graph.value(value).producer;
  if (!id) return std::nullopt;
  const Node& node = graph.node(id);
  if (has_trait(node.op, Trait::kFiller)) return of_constant(node);
  if (has_trait(node.op, Trait::kFreshBytes) || is_view(node.op)) return uniform(graph, node.inputs[0]);
  if (!has_trait(node.op, Trait::kConvertsDtype)) return std::nullopt;
  const std::optional<Uniform> from = uniform(graph, node.inputs[0]);
  return from ? cast(*from, node.attrs.t("to")) : std::nullopt;
}

std::optional<double> uniform_float(const Graph& graph, ValueId value) {
  if (!is_float(graph.type(value).dtype)) return std::nullopt;
  const std::optional<Uniform> found = uniform(graph, value);
  return found ? std::optional(found->value) : std::nullopt;
}

Builder before(Graph& graph, NodeId node) {
  Builder builder(graph);
  builder.insert_before(node);
  builder.set_origin(graph.node(node).origin);
  return builder;
}

}  // namespace lowtide
