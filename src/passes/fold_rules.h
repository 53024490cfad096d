// Rules of fold that have their own file. Each gives the value that may stand for the node's output, or none.
#pragma once

#include "ir/graph.h"

namespace lowtide {

// Views that show nothing new, and chains of views.
ValueId fold_views(Graph& graph, NodeId id);

}  // namespace lowtide
