#include "ir/reads.h"

#include <algorithm>

namespace lowtide {

static bool has_reader(const Graph& graph, ValueId value, bool (*is_wanted)(Op)) {
  const std::vector<NodeId>& users = graph.value(value).users;
  return std::any_of(users.begin(), users.end(), [&](NodeId user) { return is_wanted(graph.node(user).op); });
}

bool is_module_output(const Graph& graph, ValueId value) {
  return graph.is_output(value) || has_reader(graph, value, is_yield);
}

bool is_inspected(const Graph& graph, ValueId value) { return has_reader(graph, value, is_inspection); }

NodeId producer(const Graph& graph, ValueId value, std::initializer_list<Op> ops, bool of_inspected) {
  if (!value) return {};
  const NodeId id = graph.value(value).producer;
  if (!id || std::find(ops.begin(), ops.end(), graph.node(id).op) == ops.end()) return {};
  return of_inspected || !is_inspected(graph, value) ? id : NodeId{};
}

NodeId producer_with(const Graph& graph, ValueId value, Trait trait) {
  const NodeId id = value ? graph.value(value).producer : NodeId{};
  return id && has_trait(graph.node(id).op, trait) && !is_inspected(graph, value) ? id : NodeId{};
}

}  // namespace lowtide
