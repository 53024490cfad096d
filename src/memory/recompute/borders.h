// What crosses from one layer to another and therefore stays when layers are recomputed.
#pragma once

#include <set>

#include "memory/strategy.h"

namespace lowtide {

// Owners of bytes; empty unless the context keeps layer borders. A border that is made again in backward by default,
// from a stash, (bert's layers end in a normalisation) is kept as that stash: the bytes are the same, and the last
// product of the layer need not run again.
std::set<ValueId> layer_borders(const MemoryContext& context);

}  // namespace lowtide
