#pragma once

#include <string_view>

#include "symbolic/dim.h"

namespace lowtide {

class Scanner;

// Reads a size where the scanner stands: sums, products, `//`, `%`, `**`, min and max with Python's precedence. Errors
// as Scanner's; depth, powers and the number of terms are limited.
Dim scan_dim(Scanner& scanner);

// Words of the text form that no symbol may be called: they would not read back (true, inf, f32, min …).
bool is_reserved_word(std::string_view name);

}  // namespace lowtide
