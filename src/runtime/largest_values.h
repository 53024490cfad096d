// What takes the memory of a step: for those who have run out of it.
#pragma once

#include <string>

#include "bind/binding.h"
#include "program/program.h"

namespace lowtide {

// Lines of the ten largest values that the step's peak holds, largest first, each with its shape, its bytes, and the
// node that makes it with the line of the user's code; scratch of kernels and outputs of the module among them.
//   "\nthe largest values of the step, at its peak of 1,234 bytes in Gemm (fc2, train.py:41):\n  %h: f32[8, 64] …"
std::string largest_values(const Program& program, const Binding& binding);

}  // namespace lowtide
