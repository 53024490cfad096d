#include <algorithm>
#include <limits>
#include <numeric>

#include "pack/block_list.h"
#include "pack/packers.h"

namespace lowtide {
namespace {

// A maximal run of steps [first, last] in which the arena is filled up to the same offset.
struct Segment {
  int64_t first, last;
  int64_t height;
};

// Joins the segment at `at` with neighbours of its height.
void join_neighbours(std::vector<Segment>& segments, size_t at) {
  if (at + 1 < segments.size() && segments[at + 1].height == segments[at].height) {
    segments[at].last = segments[at + 1].last;
    segments.erase(segments.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  if (at > 0 && segments[at - 1].height == segments[at].height) {
    segments[at - 1].last = segments[at].last;
    segments.erase(segments.begin() + static_cast<std::ptrdiff_t>(at));
  }
}

// Nothing fits there: the bytes up to the lower neighbour are wasted.
void raise(std::vector<Segment>& segments, size_t at) {
  int64_t neighbour = std::numeric_limits<int64_t>::max();
  if (at > 0) neighbour = segments[at - 1].height;
  if (at + 1 < segments.size()) neighbour = std::min(neighbour, segments[at + 1].height);
  segments[at].height = neighbour;
  join_neighbours(segments, at);
}

void cover(std::vector<Segment>& segments, size_t at, const Buffer& buffer, int64_t top) {
  const Segment whole = segments[at];
  std::vector<Segment> pieces;
  if (whole.first < buffer.first) pieces.push_back({whole.first, int64_t{buffer.first} - 1, whole.height});
  pieces.push_back({buffer.first, buffer.last, top});
  if (buffer.last < whole.last) pieces.push_back({int64_t{buffer.last} + 1, whole.last, whole.height});
  const size_t middle = at + (whole.first < buffer.first ? 1 : 0);
  const auto place = segments.erase(segments.begin() + static_cast<std::ptrdiff_t>(at));
  segments.insert(place, pieces.begin(), pieces.end());
  join_neighbours(segments, middle);
}

}  // namespace

Solution pack_skyline(const Problem& problem) {
  check_problem(problem);
  const auto& buffers = problem.buffers;
  std::vector<int32_t> waiting;  // longest life first, then largest
  Segment all{std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min(), 0};
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (padded_size(buffers[i]) == 0) continue;
    waiting.push_back(static_cast<int32_t>(i));
    all.first = std::min<int64_t>(all.first, buffers[i].first);
    all.last = std::max<int64_t>(all.last, buffers[i].last);
  }
  const auto duration = [&](int32_t i) { return int64_t{buffers[i].last} - buffers[i].first; };
  std::stable_sort(waiting.begin(), waiting.end(), [&](int32_t a, int32_t b) {
    if (duration(a) != duration(b)) return duration(a) > duration(b);
    return padded_size(buffers[a]) > padded_size(buffers[b]);
  });
  std::vector<int64_t> offsets(buffers.size(), 0);
  std::vector<Segment> segments = {all};
  while (!waiting.empty()) {
    const auto lowest = std::min_element(segments.begin(), segments.end(),
                                         [](const Segment& a, const Segment& b) { return a.height < b.height; });
    const auto at = static_cast<size_t>(lowest - segments.begin());
    const auto next = std::find_if(waiting.begin(), waiting.end(), [&](int32_t i) {
      return buffers[i].first >= lowest->first && buffers[i].last <= lowest->last;
    });
    if (next == waiting.end()) {
      raise(segments, at);
      continue;
    }
    const Buffer& buffer = buffers[*next];
    offsets[*next] = align_up(lowest->height, buffer.alignment);
    cover(segments, at, buffer, offsets[*next] + padded_size(buffer));
    waiting.erase(next);
  }
  return settle(problem, offsets);
}

}  // namespace lowtide
