#include "pack/validator.h"

#include <algorithm>
#include <map>

#include "base/text.h"

namespace lowtide {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 60;

struct Rectangle {
  int64_t low, high;  // bytes [low, high)
  int64_t first, last;
};

std::string describe(size_t index, const Rectangle& r) {
  return concat("buffer ", index, " (bytes [", r.low, ", ", r.high, "), steps [", r.first, ", ", r.last, "])");
}

// Step by step. Those that are live lie one behind another, sorted by their bytes, so one that begins to live can only
// meet its two neighbours first.
std::optional<std::string> find_overlap(const std::vector<Rectangle>& placed) {
  std::vector<size_t> by_first, by_last;
  for (size_t i = 0; i < placed.size(); ++i)
    if (placed[i].low < placed[i].high) by_first.push_back(i);
  by_last = by_first;
  std::stable_sort(by_first.begin(), by_first.end(),
                   [&](size_t a, size_t b) { return placed[a].first < placed[b].first; });
  std::stable_sort(by_last.begin(), by_last.end(), [&](size_t a, size_t b) { return placed[a].last < placed[b].last; });
  std::map<int64_t, size_t> live;  // by their lowest byte
  size_t dead = 0;
  for (const size_t now : by_first) {
    const Rectangle& r = placed[now];
    for (; placed[by_last[dead]].last < r.first; ++dead) live.erase(placed[by_last[dead]].low);
    const auto above = live.lower_bound(r.low);
    size_t other = now;
    if (above != live.end() && placed[above->second].low < r.high) other = above->second;
    if (above != live.begin() && placed[std::prev(above)->second].high > r.low) other = std::prev(above)->second;
    if (other != now) {
      const auto [i, j] = std::minmax(now, other);
      return concat(describe(i, placed[i]), " overlaps ", describe(j, placed[j]));
    }
    live.emplace(r.low, now);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> validate(const Problem& problem, const Solution& solution) {
  const size_t count = problem.buffers.size();
  if (solution.offsets.size() != count) {
    return concat("expected ", count, " offsets, found ", solution.offsets.size());
  }
  std::vector<Rectangle> placed;
  placed.reserve(count);
  int64_t highest = 0;
  for (size_t i = 0; i < count; ++i) {
    const Buffer& buffer = problem.buffers[i];
    const int64_t offset = solution.offsets[i];
    if (buffer.size_bytes < 0 || buffer.alignment < 1 || buffer.first > buffer.last) {
      return concat("buffer ", i, " has a negative size, no alignment or a negative lifetime");
    }
    const int64_t tail = buffer.size_bytes % buffer.alignment;
    const int64_t owned = tail == 0 ? buffer.size_bytes : buffer.size_bytes + (buffer.alignment - tail);
    if (offset > kMostBytes || owned > kMostBytes || owned < 0) return concat("buffer ", i, " ends beyond 2^61 bytes");
    const Rectangle r{offset, offset + owned, buffer.first, buffer.last};
    if (offset < 0) return concat(describe(i, r), " has a negative offset");
    if (offset % buffer.alignment != 0) {
      return concat(describe(i, r), " is misaligned: expected a multiple of ", buffer.alignment);
    }
    if (r.high > highest) highest = r.high;
    placed.push_back(r);
  }
  if (const auto wrong = find_overlap(placed)) return wrong;
  if (solution.height != highest) {
    return concat("the height is given as ", solution.height, " but the buffers end at ", highest);
  }
  return std::nullopt;
}

}  // namespace lowtide
