// A packing problem: buffers with lifetimes, to be given offsets in one arena so that the arena is as low as possible.
//
//   offset
//     │ ┌───┐   ┌──────────┐
//     │ │ a │   │    c     │     a and d are never live together, so they may share bytes;
//     │ └───┘   └──────────┘     b and c are, so they may not.
//     │    ┌──────────────────┐
//     │    │        b         │
//     │ ┌──┴───────────┬──────┘
//     │ │      d       │
//     └─┴──────────────┴──────▶ step
#pragma once

#include <cstdint>
#include <vector>

namespace lowtide {

// Live in the closed interval of steps [first, last]. The buffer owns its bytes up to the next multiple of its
// alignment (vector kernels may touch that tail), so every count of bytes below is of padded sizes.
// A buffer of zero bytes overlaps nothing and gets offset 0.
struct Buffer {
  int64_t size_bytes = 0;
  int32_t first = 0;
  int32_t last = 0;
  int64_t alignment = 64;

  bool operator==(const Buffer&) const = default;
};

struct Problem {
  std::vector<Buffer> buffers;

  bool operator==(const Problem&) const = default;
};

struct Solution {
  std::vector<int64_t> offsets;  // by buffer
  int64_t height = 0;            // largest offset + padded size
  // A permutation of the buffers: pack_in_order() on the same problem gives exactly this solution. With other sizes
  // (another sequence length) it is often a good order still, so a binding tries it first.
  std::vector<int32_t> order;
};

constexpr int64_t padded_size(const Buffer& buffer) {
  return (buffer.size_bytes + buffer.alignment - 1) / buffer.alignment * buffer.alignment;
}

// The largest sum of the padded sizes that are live in one step, and the first step with that much; 0 and -1 without
// buffers of any size.
struct MostLive {
  int64_t size_bytes = 0;
  int32_t step = -1;
};
MostLive most_live(const Problem& problem);
// No packing is lower than the most that is live.
inline int64_t lower_bound(const Problem& problem) { return most_live(problem).size_bytes; }

// Throws InternalError unless each size >= 0, alignment >= 1, first <= last, and no sum of bytes can overflow.
// Packers call it; a problem that came from a user is checked where it is read (csv.h).
void check_problem(const Problem& problem);

}  // namespace lowtide
