// The order in which nodes run, chosen so that fewer bytes are live where most are.
#pragma once

#include <span>
#include <vector>

#include "ir/graph.h"
#include "symbolic/dim.h"

namespace lowtide {

// Sizes at which an order is judged, since those of the calls are not known when it is chosen: every symbol at the low
// end of its range, at a usual size, at the high end, and the first symbol low or high while the others are not. Ends
// are cut to what tensors have. Between these sizes nothing is proven: the bytes that a move gives and takes are
// polynomials which nearly always compare alike there, and if they do not, a peak at such sizes is higher by what one
// move costs. Bits are the same in any order. Sizes that the graph's shapes rule out are left out, and
// those at which 64 bits do not hold its bytes.
std::vector<DimValues> sample_sizes(const Graph& graph);

// An order of the graph's nodes whose live bytes are nowhere higher at their most than those of graph.order(), at any
// of the samples, and lower at one; graph.order() itself where no such order is found.
//
// Where most bytes are live, a node that made some of them may run later, right before the first that reads its result,
// and the last reader of others may run earlier, right behind the last that makes its operands:
//
//   %a = f(%x)                  %b = g(%y)             a life that had not begun
//   %b = g(%y)          →       %a = f(%x)
//   .. = h(%a)                  .. = h(%a)
//
// Nodes stay on their side of YieldOp. Calls, Inspect nodes and others with effects stay between the nodes that they
// stand between. Among moves that help alike the first in the order is taken, so that the result is deterministic.
//
// `takeovers`: of a plan of the graph as it is (find_takeovers), so that what works in place is not counted twice.
std::vector<NodeId> find_order(const Graph& graph, std::span<const DimValues> samples,
                               std::span<const ValueId> takeovers = {});

// As a pass: the order found at sample_sizes(). Requires: nothing runs again yet (clones stand right before their first
// readers, where the memory optimizer puts them). Leaves: the nodes as they are.
bool schedule_order(Graph& graph);

}  // namespace lowtide
