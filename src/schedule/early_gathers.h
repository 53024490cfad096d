#pragma once

#include "ir/graph.h"

namespace lowtide {

// Moves each gather of a parameter behind the one before it, so that its bytes travel while that one's readers run:
// emission waits for them before their first reader.
//   %p = AllGather %a            %p = AllGather %a
//   .. = f(%p)              →    %q = AllGather %b
//   %q = AllGather %b            .. = f(%p)
//   .. = g(%q)                   .. = g(%q)
// Left alone where the most live bytes would be more, at the first of sample_sizes(). Nodes stay on their side of
// YieldOp. What a gather sends moves with it.
bool begin_gathers_early(Graph& graph);

}  // namespace lowtide
