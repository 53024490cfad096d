#include "pack/skyline.h"

#include <algorithm>
#include <bit>

#include "pack/block_list.h"
#include "pack/packers.h"

namespace lowtide {

namespace {

// log2(value) × 2^16, straight between powers of two: monotone, and exact enough to compare sizes by.
int64_t log2_16(int64_t value) {
  const int floor = 63 - std::countl_zero(static_cast<uint64_t>(value));
  const int64_t fraction = floor >= 16 ? value >> (floor - 16) : value << (16 - floor);  // in [2^16, 2^17)
  return floor * int64_t{65536} + (fraction - 65536);
}

}  // namespace

std::vector<int64_t> priority_keys(const Problem& problem, const Sections& sections, int32_t size_weight_1024) {
  std::vector<int64_t> keys(problem.buffers.size(), 0);
  for (size_t i = 0; i < keys.size(); ++i) {
    const int64_t size = padded_size(problem.buffers[i]);
    if (size == 0) continue;
    const int64_t life = int64_t{sections.last[i]} - sections.first[i] + 1;
    keys[i] = log2_16(life) + log2_16(size) * size_weight_1024 / 1024;
  }
  return keys;
}

std::vector<int32_t> priority_order(const Problem& problem, const std::vector<int64_t>& keys) {
  std::vector<int32_t> order;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (problem.buffers[i].size_bytes > 0) order.push_back(static_cast<int32_t>(i));
  }
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    if (keys[a] != keys[b]) return keys[a] > keys[b];
    const int64_t size_a = problem.buffers[a].size_bytes, size_b = problem.buffers[b].size_bytes;
    return size_a != size_b ? size_a > size_b : a < b;
  });
  return order;
}

Skyline::Skyline(const Problem& problem) : sections_(split_into_sections(problem)) {
  const size_t count = problem.buffers.size(), section_count = sections_.live.size();
  bucket_begin_.assign(section_count + 1, 0);
  for (size_t i = 0; i < count; ++i) {
    size_.push_back(padded_size(problem.buffers[i]));
    alignment_.push_back(problem.buffers[i].alignment);
    if (size_[i] > 0) ++bucket_begin_[sections_.first[i] + 1];
  }
  for (size_t section = 0; section < section_count; ++section) {
    bucket_begin_[section + 1] += bucket_begin_[section];
    bound_ = std::max(bound_, sections_.live[section]);
  }
  bucket_.resize(bucket_begin_.back());
  std::vector<int32_t> next(bucket_begin_.begin(), bucket_begin_.end() - 1);
  for (size_t i = 0; i < count; ++i) {
    if (size_[i] > 0) bucket_[next[sections_.first[i]]++] = static_cast<int32_t>(i);
  }
  offsets_.assign(count, 0);
  turns_.assign(count, 0);
  rank_.assign(count, 0);
}

bool Skyline::fill(std::span<const int32_t> priority, int64_t limit) {
  priority_ = priority;
  for (size_t k = 0; k < priority.size(); ++k) rank_[priority[k]] = static_cast<int32_t>(k);
  placed_.assign(size_.size(), 0);
  placed_count_ = 0;
  waiting_.assign(priority.begin(), priority.end());
  waiting_first_.resize(priority.size());
  waiting_last_.resize(priority.size());
  for (size_t k = 0; k < priority.size(); ++k) {
    waiting_first_[k] = sections_.first[priority[k]];
    waiting_last_[k] = sections_.last[priority[k]];
  }
  remaining_ = sections_.live;
  segments_.assign(1, {0, static_cast<int32_t>(remaining_.size()) - 1, 0});
  raises_.clear();
  excess_ = 0;
  work_ += 4 * static_cast<int64_t>(priority.size());
  while (static_cast<size_t>(placed_count_) < priority.size()) {
    const size_t at = lowest_segment();
    const int32_t buffer = choose(segments_[at]);
    if (buffer >= 0) {
      place(buffer, at);
    } else {
      raise(at);
    }
    if (excess_ > limit) return false;
  }
  return true;
}

size_t Skyline::lowest_segment() const {
  size_t lowest = 0;
  for (size_t k = 1; k < segments_.size(); ++k) {
    if (segments_[k].height < segments_[lowest].height) lowest = k;
  }
  return lowest;
}

// The first in priority that lives only in the segment's sections, or -1. Narrow segments look at the buffers that
// start in them, wide ones (where the first few mostly fit) at the waiting ones in order of priority.
int32_t Skyline::choose(const Segment& segment) {
  work_ += static_cast<int64_t>(segments_.size()) + 60;
  const int32_t begin = bucket_begin_[segment.first], end = bucket_begin_[segment.last + 1];
  if (static_cast<size_t>(end - begin) < waiting_.size() / 2) {
    int32_t best = std::numeric_limits<int32_t>::max();
    for (int32_t k = begin; k < end; ++k) {
      const int32_t buffer = bucket_[k];
      const bool fits = (placed_[buffer] == 0) & (sections_.last[buffer] <= segment.last) & (rank_[buffer] < best);
      best = fits ? rank_[buffer] : best;
    }
    work_ += end - begin;
    return best == std::numeric_limits<int32_t>::max() ? -1 : priority_[best];
  }
  size_t k = 0;
  for (; k < waiting_.size(); ++k) {
    const bool inside = (waiting_first_[k] >= segment.first) & (waiting_last_[k] <= segment.last);
    if (inside && !placed_[waiting_[k]]) break;
  }
  work_ += static_cast<int64_t>(k);
  const int32_t found = k < waiting_.size() ? waiting_[k] : -1;
  if ((priority_.size() - static_cast<size_t>(placed_count_)) * 4 < waiting_.size() * 3) forget_placed();
  return found;
}

void Skyline::forget_placed() {
  size_t kept = 0;
  for (size_t k = 0; k < waiting_.size(); ++k) {
    if (placed_[waiting_[k]]) continue;
    waiting_[kept] = waiting_[k];
    waiting_first_[kept] = waiting_first_[k];
    waiting_last_[kept] = waiting_last_[k];
    ++kept;
  }
  waiting_.resize(kept);
  waiting_first_.resize(kept);
  waiting_last_.resize(kept);
}

void Skyline::place(int32_t buffer, size_t at) {
  const Segment whole = segments_[at];
  const int32_t first = sections_.first[buffer], last = sections_.last[buffer];
  const int64_t offset = align_up(whole.height, alignment_[buffer]), top = offset + size_[buffer];
  placed_[buffer] = 1;
  turns_[buffer] = placed_count_++;
  offsets_[buffer] = offset;
  for (int32_t section = first; section <= last; ++section) remaining_[section] -= size_[buffer];
  if (offset != whole.height) {  // alignment gave up bytes
    for (int32_t section = first; section <= last; ++section) {
      excess_ = std::max(excess_, top + remaining_[section] - bound_);
    }
  }
  Segment pieces[3];
  size_t count = 0, middle = at;
  if (whole.first < first) {
    pieces[count++] = {whole.first, first - 1, whole.height};
    ++middle;
  }
  pieces[count++] = {first, last, top};
  if (last < whole.last) pieces[count++] = {last + 1, whole.last, whole.height};
  segments_[at] = pieces[0];
  segments_.insert(segments_.begin() + static_cast<std::ptrdiff_t>(at) + 1, pieces + 1, pieces + count);
  join_neighbours(middle);
  work_ += (last - first) / 2;
}

void Skyline::raise(size_t at) {
  Segment& segment = segments_[at];
  int64_t height = std::numeric_limits<int64_t>::max();
  if (at > 0) height = segments_[at - 1].height;
  if (at + 1 < segments_.size()) height = std::min(height, segments_[at + 1].height);
  int32_t fullest = segment.first;
  for (int32_t section = segment.first; section <= segment.last; ++section) {
    if (remaining_[section] > remaining_[fullest]) fullest = section;
  }
  work_ += segment.last - segment.first;
  if (remaining_[fullest] > 0) {
    const int64_t excess = height + remaining_[fullest] - bound_;
    excess_ = std::max(excess_, excess);
    raises_.push_back({segment.first, segment.last, segment.height, height, placed_count_, excess, fullest});
  }
  segment.height = height;
  join_neighbours(at);
}

void Skyline::join_neighbours(size_t at) {
  if (at + 1 < segments_.size() && segments_[at + 1].height == segments_[at].height) {
    segments_[at].last = segments_[at + 1].last;
    segments_.erase(segments_.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  if (at > 0 && segments_[at - 1].height == segments_[at].height) {
    segments_[at - 1].last = segments_[at].last;
    segments_.erase(segments_.begin() + static_cast<std::ptrdiff_t>(at));
  }
}

Solution pack_skyline(const Problem& problem) {
  check_problem(problem);
  Skyline skyline(problem);
  std::vector<int64_t> best(problem.buffers.size(), 0);
  int64_t excess = Skyline::kNoLimit;
  for (const int32_t size_weight_1024 : {0, 100, 200, 500}) {
    const auto order = priority_order(problem, priority_keys(problem, skyline.sections(), size_weight_1024));
    if (order.empty() || excess == 0) break;
    if (!skyline.fill(order, excess - 1)) continue;
    excess = skyline.excess();
    best = skyline.offsets();
  }
  return settle(problem, best);
}

}  // namespace lowtide
