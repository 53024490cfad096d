#include "base/size_code.h"

#include <algorithm>

#include "base/checked.h"

namespace lowtide {

static int64_t apply(int64_t code, int64_t a, int64_t b) {
  switch (code) {
    case kSizeAdd: return checked_add(a, b);
    case kSizeSub: return checked_subtract(a, b);
    case kSizeMul: return checked_multiply(a, b);
    case kSizeMin: return std::min(a, b);
    case kSizeMax: return std::max(a, b);
    case kSizeFloorDiv:
    case kSizeMod:
      LT_USER_CHECK(ErrorKind::kInvalidArgument, b > 0, "these input sizes divide a size by ", b);
      return code == kSizeFloorDiv ? checked_floor_div(a, b) : floor_mod(a, b);
    default: LT_FAIL("size code was not checked");
  }
}

static constexpr int64_t kDepth = 64;

void check_size_code(std::span<const int64_t> code, size_t symbol_count) {
  int64_t depth = 0;
  for (size_t at = 0; at < code.size(); ++at) {
    const int64_t instruction = code[at];
    if (instruction == kSizePush || instruction == kSizeSymbol) {
      LT_USER_CHECK(ErrorKind::kInvalidProgram, at + 1 < code.size() && depth < kDepth, "size code is cut or too deep");
      const int64_t operand = code[++at];
      LT_USER_CHECK(ErrorKind::kInvalidProgram,
                    instruction == kSizePush || (operand >= 0 && operand < static_cast<int64_t>(symbol_count)),
                    "size code reads symbol ", operand, " of ", symbol_count);
      ++depth;
    } else {
      LT_USER_CHECK(ErrorKind::kInvalidProgram, instruction >= kSizeAdd && instruction <= kSizeMax,
                    "size code has no instruction ", instruction);
      LT_USER_CHECK(ErrorKind::kInvalidProgram, depth >= 2, "size code has too few operands");
      --depth;
    }
  }
  LT_USER_CHECK(ErrorKind::kInvalidProgram, depth == 1, "size code leaves ", depth, " values");
}

int64_t run_size_code(std::span<const int64_t> code, std::span<const int64_t> symbols) {
  int64_t stack[kDepth];
  size_t depth = 0;
  for (size_t at = 0; at < code.size(); ++at) {
    switch (code[at]) {
      case kSizePush: stack[depth++] = code[++at]; break;
      case kSizeSymbol: stack[depth++] = symbols[static_cast<size_t>(code[++at])]; break;
      default: stack[depth - 2] = apply(code[at], stack[depth - 2], stack[depth - 1]); --depth;
    }
  }
  return stack[0];
}

}  // namespace lowtide
