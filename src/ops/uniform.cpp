#include "ops/uniform.h"

namespace lowtide {

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

}  // namespace lowtide
