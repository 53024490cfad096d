// Tokens of the Program's text form, shared by print and parse.
#pragma once

#include "program/program.h"

namespace lowtide {

inline constexpr int kProgramVersion = 2;

std::string_view name(BufferKind kind);
std::string_view name(StepKind kind);
// Of everything before the last line: a damaged file is told from one that another version wrote.
uint64_t checksum(std::string_view text);

}  // namespace lowtide
