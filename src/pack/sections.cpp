#include "pack/sections.h"

#include <algorithm>
#include <utility>

namespace lowtide {

Sections split_into_sections(const Problem& problem) {
  std::vector<std::pair<int64_t, bool>> events;  // step, is a birth: deaths come before births of the same step
  for (const Buffer& buffer : problem.buffers) {
    if (padded_size(buffer) == 0) continue;
    events.emplace_back(buffer.first, true);
    events.emplace_back(int64_t{buffer.last} + 1, false);
  }
  std::sort(events.begin(), events.end());
  std::vector<int64_t> starts;
  bool after_death = true;
  for (const auto& [step, is_birth] : events) {
    if (is_birth && after_death) starts.push_back(step);
    after_death = !is_birth;
  }
  const auto section_of = [&](int64_t step) {
    return static_cast<int32_t>(std::upper_bound(starts.begin(), starts.end(), step) - starts.begin()) - 1;
  };
  Sections sections;
  sections.live.assign(starts.size(), 0);
  for (const Buffer& buffer : problem.buffers) {
    const int64_t size = padded_size(buffer);
    const int32_t first = size == 0 ? 0 : section_of(buffer.first);
    const int32_t last = size == 0 ? -1 : section_of(buffer.last);
    sections.first.push_back(first);
    sections.last.push_back(last);
    for (int32_t section = first; section <= last; ++section) sections.live[section] += size;
  }
  return sections;
}

}  // namespace lowtide
