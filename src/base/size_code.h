// Short integer programs: sizes as postfix code over a table of symbol values. Written by symbolic/, run by a Program.
#pragma once

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

// Error(kInvalidProgram) for code that is not well formed (stack, symbol index, division by zero, depth over 64).
int64_t run_size_code(std::span<const int64_t> code, std::span<const int64_t> symbols);

}  // namespace lowtide
