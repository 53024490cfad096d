// The sizes that a plan is bound for.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "program/program.h"

namespace lowtide {

// A size that a step writes, and that the elements of an input bound before it runs: those other than `without`.
struct CountedSize {
  size_t step_symbol = 0;
  int32_t input = 0;
  int64_t without = 0;
};
std::vector<CountedSize> counted_sizes(const Program& program);

// The values of Program::symbols, then the most that each of Program::step_symbols may be. `symbol_values`: of
// Program::symbols; behind them, or not, a bound for each of counted_sizes.
std::vector<int64_t> planned_sizes(const Program& program, std::span<const int64_t> symbol_values);

// Whether these are as many as planned_sizes takes.
bool fit_symbols(const Program& program, std::span<const int64_t> symbol_values);

}  // namespace lowtide
