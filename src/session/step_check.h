#pragma once

#include "bind/binding.h"

namespace lowtide {

// Whether each kernel step of a program from a file is one that its kernel can run: as many operands and attributes as
// its op has, outputs of the types that inference gives, layouts that the kernel accepts, bytes shared only where it
// works in place. Error(kInvalidProgram) names the step. With operands that lie in their buffers, no kernel then leaves
// its operands.
void check_steps(const Program& program, const Binding& binding);

}  // namespace lowtide
