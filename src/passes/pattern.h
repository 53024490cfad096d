// Finding groups of nodes that one op replaces.
#pragma once

#include <initializer_list>
#include <vector>

#include "passes/rewrite.h"

namespace lowtide {

// The nodes of one match. Everything but the root's value may be seen only inside, else the match would not save it.
class Pattern {
 public:
  // `inspected`: the match may hold inspected values; keep_inspected is called once it is replaced.
  explicit Pattern(const Graph& graph, bool inspected = false) : graph_(&graph), inspected_(inspected) {}

  // The producer of `value` if it is one of `ops`; it becomes part of the match.
  NodeId take(ValueId value, std::initializer_list<Op> ops);
  NodeId take(ValueId value, Op op) { return take(value, {op}); }
  void add(NodeId node);
  // `value` = x OP c, or c OP x for Add and Mul, with a uniform constant c near `number` (to f32's precision): x, or
  // none.
  ValueId take_with_constant(ValueId value, Op op, double number);
  const std::vector<NodeId>& nodes() const { return nodes_; }

  // Whether only nodes of the match read what nodes other than `root` compute. Constants may be shared.
  bool is_closed(NodeId root) const;
  // After `fused`, or a view of it that has all of its elements in their order, has taken the place of the root's
  // value: where something inside is inspected, the match stays beside it, and what is inspected has the gradient that
  // it had. Requires: what reads `fused` lies behind the root, so that its gradient is whole when it is handed over.
  void keep_inspected(Graph& graph, NodeId root, ValueId fused) const;
  // The origin of the op that replaces the match: the root's place, the matched ops as note.
  Origin origin(NodeId root) const;

 private:
  const Graph* graph_;
  bool inspected_;
  std::vector<NodeId> nodes_;
};

bool is_near(double found, double expected);

}  // namespace lowtide
