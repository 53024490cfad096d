// What a user sees of a plan: steps, buffers with lifetimes and offsets, peak, lower bound, waste.
#pragma once

#include <string>

#include "bind/binding.h"
#include "program/program.h"

namespace lowtide {

std::string plan_text(const Program& program, const Binding& binding);

}  // namespace lowtide
