// Lifetimes in sections instead of steps: a section starts where a birth follows a death, so two buffers live together
// exactly if they share a section, and there are far fewer sections than steps.
//
//   step      0 1 2 3 4 5 6 7
//   a         ━━━━━━━               the sections are [0, 2], [3, 3] and [4, 7]
//   b               ━━━━━━━━━       a lives in sections 0-1, b in 1-2, c in 2, d in 0
//   c                 ━━━━━━━
//   d             ━
#pragma once

#include <cstdint>
#include <vector>

#include "pack/problem.h"

namespace lowtide {

struct Sections {
  std::vector<int32_t> first, last;  // by buffer; meaningless for buffers of zero bytes
  std::vector<int64_t> live;         // by section: padded bytes of the buffers in it
};

Sections split_into_sections(const Problem& problem);

}  // namespace lowtide
