// What all losses end with.
#pragma once

#include "lower/call.h"

namespace lowtide {

// The loss of each element, reduced as the call asks.
bool reduced(Call& c, ValueId loss);

}  // namespace lowtide
