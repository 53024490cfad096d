// The pipelines between capture and plan.
#pragma once

#include "passes/pass.h"

namespace lowtide {

// After lowering, before the gradient: canonical forms, patterns that have a gradient rule of their own.
void optimize_forward(Graph& graph, const PassOptions& options = {});
// After the gradient: cleaning that never lengthens the stash.
void optimize_training(Graph& graph, const PassOptions& options = {});

}  // namespace lowtide
