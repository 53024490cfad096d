#include "pack/problem.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace lowtide {

MostLive most_live(const Problem& problem) {
  std::vector<std::pair<int64_t, int64_t>> changes;  // step, change of the live bytes
  changes.reserve(2 * problem.buffers.size());
  for (const Buffer& buffer : problem.buffers) {
    changes.emplace_back(buffer.first, padded_size(buffer));
    changes.emplace_back(int64_t{buffer.last} + 1, -padded_size(buffer));
  }
  // Pairs order deaths before births of the same step, so that no sum is too high.
  std::sort(changes.begin(), changes.end());
  MostLive most;
  int64_t live = 0;
  for (const auto& [step, change] : changes) {
    live += change;
    if (live > most.size_bytes) most = {live, static_cast<int32_t>(step)};
  }
  return most;
}

void check_problem(const Problem& problem) {
  constexpr int64_t kMostBytes = int64_t{1} << 60;
  int64_t room = kMostBytes;
  for (size_t i = 0; i < problem.buffers.size(); ++i) {
    const Buffer& buffer = problem.buffers[i];
    LT_CHECK(buffer.size_bytes >= 0, "buffer ", i, " has ", buffer.size_bytes, " bytes");
    LT_CHECK(buffer.alignment >= 1, "buffer ", i, " has alignment ", buffer.alignment);
    LT_CHECK(buffer.first <= buffer.last, "buffer ", i, " lives in [", buffer.first, ", ", buffer.last, "]");
    // Stacked in any order, with a gap of one alignment below each, all buffers end below kMostBytes.
    LT_CHECK(buffer.size_bytes < kMostBytes && buffer.alignment < kMostBytes, "buffer ", i, " is too large");
    room -= padded_size(buffer) + buffer.alignment;
    LT_CHECK(room >= 0, "the buffers together need more than 2^60 bytes");
  }
}

}  // namespace lowtide
