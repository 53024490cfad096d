// Random graphs for property tests: every feature of the text form, and (executable) forward graphs.
#pragma once

#include <cstdint>
#include <random>

#include "ir/graph.h"

namespace lowtide::fuzz {

// A graph that holds to the invariants, types aside (types are arbitrary): calls, bodies, YieldOp, odd names, origins,
// every kind of attribute. The same seed gives the same graph.
Graph random_text_graph(uint64_t seed);

}  // namespace lowtide::fuzz
