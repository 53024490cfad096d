// What rewrites share: reading producers and constants, and replacing a value where that cannot be noticed.
#pragma once

#include <initializer_list>
#include <optional>

#include "ir/graph.h"
#include "ir/views.h"
#include "ops/builder.h"

namespace lowtide {

// An output of the module: of the graph, or an operand of YieldOp.
bool is_module_output(const Graph& graph, ValueId value);
// Whether a node or the graph's outputs read it: rewritten nodes stay, unread, until dce.
inline bool is_read(const Graph& graph, ValueId value) {
  return !graph.value(value).users.empty() || graph.is_output(value);
}
// Whether `to` may take the place of `from` everywhere: a module output must not become a view of an input or of
// another output, which the user could tell by writing into it.
bool may_replace(const Graph& graph, ValueId from, ValueId to);

// An Inspect node reads it.
bool is_inspected(const Graph& graph, ValueId value);
// The producer of `value` if it is one of `ops`, or none. None of an inspected value either: its readers must stay its
// readers, since its gradient is what flows in from them. (`of_inspected`: of such a value too; see Pattern.)
NodeId producer(const Graph& graph, ValueId value, std::initializer_list<Op> ops, bool of_inspected = false);
inline NodeId producer(const Graph& graph, ValueId value, Op op, bool of_inspected = false) {
  return producer(graph, value, {op}, of_inspected);
}
inline ValueId operand(const Graph& graph, NodeId node, size_t index) { return graph.node(node).inputs[index]; }

// A tensor whose elements are all the same number.
struct Uniform {
  DType dtype = DType::kF32;
  double value = 0;  // of floats, as written (not yet rounded to dtype)
  Dim integer;       // of integers and bool
};
// Seen through views, casts and copies of a constant; nullopt if it is none. A cast counts only if it keeps the number
// exactly or rounds it to f32.
std::optional<Uniform> uniform(const Graph& graph, ValueId value);
// The number of a uniform float tensor.
std::optional<double> uniform_float(const Graph& graph, ValueId value);
inline bool is_uniform(const Graph& graph, ValueId value, double number) {
  const std::optional<double> found = uniform_float(graph, value);
  return found && *found == number;
}

// A builder that writes before `node` with its origin.
Builder before(Graph& graph, NodeId node);

// Runs `rewrite` on every node until nothing changes (at most `rounds` times over the graph). A rewrite returns whether
// it changed the graph; it may remove nodes.
template <class Rewrite>
bool rewrite_nodes(Graph& graph, int rounds, Rewrite&& rewrite) {
  bool changed = false;
  for (int round = 0; round < rounds; ++round) {
    bool again = false;
    const std::vector<NodeId> order = graph.order();
    for (NodeId id : order)
      if (graph.is_alive(id)) again = rewrite(id) || again;
    changed = changed || again;
    if (!again) break;
  }
  return changed;
}

}  // namespace lowtide
