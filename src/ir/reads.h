// Who reads a value, and who makes it.
#pragma once

#include <initializer_list>

#include "ir/graph.h"

namespace lowtide {

// An output of the module: of the graph, or an operand of YieldOp.
bool is_module_output(const Graph& graph, ValueId value);
// Whether a node or the graph's outputs read it: rewritten nodes stay, unread, until dce.
inline bool is_read(const Graph& graph, ValueId value) {
  return !graph.value(value).users.empty() || graph.is_output(value);
}
// An Inspect node reads it.
bool is_inspected(const Graph& graph, ValueId value);

// The producer of `value` if it is one of `ops`, or none. None of an inspected value either: its readers must stay its
// readers, since its gradient is what flows in from them. (`of_inspected`: of such a value too; see Pattern.)
NodeId producer(const Graph& graph, ValueId value, std::initializer_list<Op> ops, bool of_inspected = false);
inline NodeId producer(const Graph& graph, ValueId value, Op op, bool of_inspected = false) {
  return producer(graph, value, {op}, of_inspected);
}
// The same by a trait of the op.
NodeId producer_with(const Graph& graph, ValueId value, Trait trait);
inline ValueId operand(const Graph& graph, NodeId node, size_t index) { return graph.node(node).inputs[index]; }

}  // namespace lowtide
