// Whose bytes a value shows.
#pragma once

#include "ir/graph.h"

namespace lowtide {

// The graph input or node output whose bytes `value` shows: views are followed.
ValueId base_of_views(const Graph& graph, ValueId value);

}  // namespace lowtide
