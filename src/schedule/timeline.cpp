#include "schedule/timeline.h"

#include <algorithm>
#include <limits>

namespace lowtide {

// Of leaves behind the last position: no sum of bytes comes near it, and bytes may be added to it.
static constexpr int64_t kNothing = std::numeric_limits<int64_t>::min() / 4;

Timeline::Timeline(int32_t positions) : positions_(positions) {
  if (positions <= 0) return;
  while (leaves_ < positions) leaves_ *= 2;
  added_.assign(static_cast<size_t>(2 * leaves_), 0);
  highest_.assign(static_cast<size_t>(2 * leaves_), 0);
  for (int32_t leaf = positions; leaf < leaves_; ++leaf) highest_[static_cast<size_t>(leaves_ + leaf)] = kNothing;
  for (size_t node = static_cast<size_t>(leaves_) - 1; node >= 1; --node)
    highest_[node] = std::max(highest_[2 * node], highest_[2 * node + 1]);
}

void Timeline::add(Stretch stretch, int64_t bytes) {
  const int32_t first = std::max(stretch.first, 0), last = std::min(stretch.last, positions_ - 1);
  if (first > last || bytes == 0) return;
  const auto grow = [&](size_t node) {
    added_[node] += bytes;
    highest_[node] += bytes;
  };
  // Of the nodes from the leaves up, those that lie inside while their parents do not.
  size_t low = static_cast<size_t>(leaves_ + first), high = static_cast<size_t>(leaves_ + last) + 1;
  for (; low < high; low /= 2, high /= 2) {
    if (low % 2 == 1) grow(low++);
    if (high % 2 == 1) grow(--high);
  }
  // What stands above them is right again from the bottom up; of a node that grew whole, the children did not change.
  for (size_t node : {static_cast<size_t>(leaves_ + first) / 2, static_cast<size_t>(leaves_ + last) / 2})
    for (; node >= 1; node /= 2) highest_[node] = added_[node] + std::max(highest_[2 * node], highest_[2 * node + 1]);
}

void Timeline::change(Stretch from, Stretch to, int64_t bytes) {
  remove(from, bytes);
  add(to, bytes);
}

int32_t Timeline::peak_position() const {
  if (positions_ <= 0) return -1;
  size_t node = 1;
  while (node < static_cast<size_t>(leaves_))
    node = highest_[2 * node] >= highest_[2 * node + 1] ? 2 * node : 2 * node + 1;
  return static_cast<int32_t>(node) - leaves_;
}

int64_t Timeline::peak_within(Stretch stretch) const {
  const int32_t first = std::max(stretch.first, 0), last = std::min(stretch.last, positions_ - 1);
  if (first > last) return 0;
  // The largest sums in the parts of the stretch to the left and to the right, both with all that was added up to where
  // the walk is.
  size_t low = static_cast<size_t>(leaves_ + first), high = static_cast<size_t>(leaves_ + last);
  int64_t left = highest_[low], right = highest_[high];
  while (low / 2 != high / 2) {
    if (low % 2 == 0) left = std::max(left, highest_[low + 1]);
    if (high % 2 == 1) right = std::max(right, highest_[high - 1]);
    low /= 2;
    high /= 2;
    left += added_[low];
    right += added_[high];
  }
  int64_t result = std::max(left, right);
  for (size_t node = low / 2; node >= 1; node /= 2) result += added_[node];
  return result;
}

}  // namespace lowtide
