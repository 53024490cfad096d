// Short integer programs: sizes as postfix code over a table of symbol values. Written by symbolic/, run by a Program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lowtide {

enum SizeCode : int64_t {
  kSizePush,    // followed by the value
  kSizeSymbol,  // followed by the index into the symbol table
  kSizeAdd,
  kSizeSub,
  kSizeMul,
  kSizeFloorDiv,
  kSizeMod,
  kSizeMin,
  kSizeMax,
};

// Error(kInvalidProgram) for code that is not well formed: unknown instruction, symbol index, stack, depth over 64.
void check_size_code(std::span<const int64_t> code, size_t symbol_count);

// Error(kInvalidArgument) where it divides by zero or less, or leaves 64 bits. Requires: checked code.
int64_t run_size_code(std::span<const int64_t> code, std::span<const int64_t> symbols);

}  // namespace lowtide
