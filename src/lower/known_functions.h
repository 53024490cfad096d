// Custom torch.autograd.Functions of well-known libraries that compute an op of ours, forward and backward.
//
// Such a Function arrives as a PythonOp, whose body nobody can see; this table is trusted knowledge of what stands in
// it.
#pragma once

#include <span>
#include <string_view>

#include "ops/builder.h"

namespace lowtide {

// Emits the Function's single output, or an invalid id where these operands have no equal in our ops.
using KnownFunction = ValueId (*)(Builder&, std::span<const ValueId> operands);

// By module and qualified name; nullptr: unknown.
KnownFunction find_known_function(std::string_view target);

}  // namespace lowtide
