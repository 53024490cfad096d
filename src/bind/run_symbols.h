// Sizes that get their values while steps run: those that a step writes, and the rows of a loop's block. A binding is
// made for the most that they may be; then each value is set when it is known.
#pragma once

#include "bind/binding.h"

namespace lowtide {

// By step symbol, then by loop.
std::vector<SymbolUse> find_uses(const Program& program, Binding& binding);

// Gives the symbols from `first` on these values: what depends on them is evaluated again, operands move and change
// sizes, kernels are prepared again. Allocates nothing. nullptr, or what is wrong: an operand would leave its buffer, a
// kernel would need more scratch than is planned.
KernelStatus set_symbols(const Program& program, Binding& binding, const SymbolUse& use, size_t first,
                         std::span<const int64_t> values, std::span<char* const> bases);

}  // namespace lowtide
