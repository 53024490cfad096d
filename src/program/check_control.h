// The part of a Program's check that is about when steps run and where: loops, begun calls, sizes that steps write,
// devices.
#pragma once

#include "program/program.h"

namespace lowtide {

// Requires: indices, expressions and regions are right.
void check_control(const Program& program);

}  // namespace lowtide
