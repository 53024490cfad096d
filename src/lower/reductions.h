// Norms, for whoever needs one.
#pragma once

#include <optional>

#include "lower/call.h"

namespace lowtide {

// The p-norm of x over `axes`; none for the order 0, which has no gradient.
std::optional<ValueId> norm(Builder& b, ValueId x, double order, const std::vector<int64_t>& axes, bool keepdims);

}  // namespace lowtide
