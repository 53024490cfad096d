#pragma once

#include <vector>

#include "ir/graph.h"
#include "symbolic/dim.h"

namespace lowtide {

// A collective whose operand is added up: neither a gather nor a change of layout.
inline bool is_reduction(Op op) { return is_collective(op) && !is_gather(op) && !is_redistribution(op); }

// A reduction that goes on while the nodes behind it run.
struct LateWait {
  NodeId reduction;
  NodeId before;  // the node before which it has ended; none: the end of backward
};

// Finds how long each reduction of a gradient may go on, and moves what reads its result behind that.
//   %r = ReduceScatter %g        %r = ReduceScatter %g
//   %s = Reshape %r              .. = f(..)
//   .. = f(..)              →    (the wait)
//                                %s = Reshape %r
// Until then the whole gradient is live, and what other processes send. So the wait stands where the most live bytes
// would else be more, at any of `sizes`, but not behind the fourth reduction that begins meanwhile:
// messages travel one after another, and hooks wait for the gradient.
// `spare_percent`: of the most live bytes, what stays free below them, for copies, scratch and packing.
std::vector<LateWait> end_reductions_late(Graph& graph, const std::vector<DimValues>& sizes, int64_t spare_percent = 0);

}  // namespace lowtide
