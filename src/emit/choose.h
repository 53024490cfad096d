// Kernel choice: a static table per op, best first, reference last, never a timing.
#pragma once

#include <span>

#include "emit/plan.h"

namespace lowtide {

// The attributes without Dims that are still symbolic.
BoundAttrs constant_attrs(const Attrs& attrs);

// The first kernel that takes the node; `choice` records why better ones refused. Error(kUnsupported) if none does.
const Kernel& choose_kernel(const Graph& graph, NodeId node, std::span<const OperandInfo> inputs,
                            std::span<const OperandInfo> outputs, const PlanOptions& options, KernelChoice& choice);

}  // namespace lowtide
