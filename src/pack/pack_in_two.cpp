#include "pack/pack_in_two.h"

#include <algorithm>
#include <numeric>

#include "pack/packers.h"

namespace lowtide {

// A line that lives all the time, at the border: first fit puts nothing across it.
static constexpr int64_t kFenceBytes = 64;

TwoParts pack_in_two(const Problem& problem, int32_t middle) {
  TwoParts parts;
  std::vector<int32_t> kept;
  std::vector<bool> is_kept(problem.buffers.size());
  int32_t last = 0;
  for (size_t i = 0; i < problem.buffers.size(); ++i) {
    const Buffer& buffer = problem.buffers[i];
    last = std::max(last, buffer.last);
    is_kept[i] = buffer.first < middle && buffer.last >= middle && buffer.size_bytes > 0;
    if (!is_kept[i]) continue;
    kept.push_back(static_cast<int32_t>(i));
    parts.below_bytes += padded_size(buffer);
  }
  // What forward makes last lies lowest: its place is free for long before, and often again soon after the middle.
  std::stable_sort(kept.begin(), kept.end(), [&](int32_t a, int32_t b) {
    return problem.buffers[static_cast<size_t>(a)].first > problem.buffers[static_cast<size_t>(b)].first;
  });

  Problem fenced = problem;
  fenced.buffers.push_back({kFenceBytes, 0, last, kFenceBytes});
  const int32_t fence = static_cast<int32_t>(problem.buffers.size());
  for (const auto packer : {pack_by_size, pack_by_area, pack_by_duration, pack_by_pressure}) {
    std::vector<int32_t> order = kept;
    order.push_back(fence);
    for (int32_t i : packer(problem).order)
      if (!is_kept[static_cast<size_t>(i)]) order.push_back(i);
    Solution found = pack_in_order(fenced, order);
    if (parts.solution.offsets.empty() || found.height < parts.solution.height) parts.solution = std::move(found);
  }
  // Without the fence. No order packs so without it.
  Solution& solution = parts.solution;
  solution.offsets.pop_back();
  solution.height -= kFenceBytes;
  solution.order.clear();
  for (int64_t& offset : solution.offsets)
    if (offset >= parts.below_bytes + kFenceBytes) offset -= kFenceBytes;
  return parts;
}

}  // namespace lowtide
