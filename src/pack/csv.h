// Packing problems as text, for bug reports, recorded plans (benchmarks/plans) and other packers:
//   id,first,last,size,alignment[,offset]
//   %h.3,4,17,3145728,64,0
// An id is any text without comma and line break; steps and bytes as in problem.h; the offset is optional.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pack/problem.h"

namespace lowtide {

struct CsvPlan {
  std::vector<std::string> ids;
  Problem problem;
  std::optional<std::vector<int64_t>> offsets;  // as written, not validated
};

// Throws Error (kInvalidArgument) naming line and column.
CsvPlan read_csv(std::string_view text);

// `offsets` may be empty (a problem without a solution), `ids` too (then 0, 1, …).
std::string write_csv(const Problem& problem, std::span<const int64_t> offsets = {},
                      std::span<const std::string> ids = {});

}  // namespace lowtide
