#include "session/step_plans.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "base/check.h"

namespace lowtide {
namespace {

int64_t sum(const std::vector<int64_t>& numbers) { return std::accumulate(numbers.begin(), numbers.end(), int64_t{0}); }

std::vector<StepNeed> needs_of(const std::vector<StepOption>& chosen) {
  std::vector<StepNeed> needs;
  for (const StepOption& option : chosen) needs.push_back(option.need);
  return needs;
}

// What a change of plans is for: the peak, then what is there all the time, which several graphs may share a peak by.
struct Size {
  int64_t peak = 0;
  int64_t standing = 0;
  auto operator<=>(const Size&) const = default;
};

Size size_of(const std::vector<StepOption>& chosen) {
  const std::vector<StepNeed> needs = needs_of(chosen);
  Size size{peak_of(needs), 0};
  for (const StepNeed& need : needs) size.standing += need.standing_bytes() + need.share.passing;
  return size;
}

}  // namespace

int64_t StepNeed::standing_bytes() const { return share.kept + sum(share.late) + output_bytes; }

StepNeed need_of(const MemoryReport& report, bool is_pending, int64_t graph) {
  StepNeed need{{.kept = report.kept_bytes,
                 .is_pending = is_pending,
                 .is_pinned = is_pending && report.passing_bytes == 0 && report.late_blocks.empty(),
                 .passing = report.passing_bytes,
                 .late = report.late_blocks},
                report.output_bytes,
                report.external_bytes,
                graph};
  return need;
}

int64_t peak_of(std::span<const StepNeed> needs) {
  int64_t pinned = 0, waiting = 0, gradients = 0, passing = 0;
  for (const StepNeed& need : needs) {
    if (need.share.is_pinned) pinned += need.share.kept;
    if (need.waits()) waiting += need.share.kept;
    passing = std::max(passing, need.share.passing + (need.share.is_pending ? 0 : need.share.kept));
  }
  int64_t most = waiting;
  std::set<int64_t> seen;
  for (size_t i = needs.size(); i-- > 0;) {
    const StepNeed& need = needs[i];
    if (!need.waits()) continue;
    if (seen.insert(need.graph).second) gradients += sum(need.share.late);
    most = std::max(most, waiting + gradients);
    waiting -= need.share.kept;
  }
  return pinned + most + passing + bytes_beside(needs);
}

int64_t bytes_beside(std::span<const StepNeed> needs) {
  int64_t outputs = 0, external = 0;
  for (const StepNeed& need : needs) {
    outputs += need.output_bytes;
    external = std::max(external, need.external_bytes);
  }
  return outputs + external;
}

std::shared_ptr<StepArena> arena_of(std::span<const StepNeed> needs) {
  std::vector<StepShare> shares;
  for (const StepNeed& need : needs) shares.push_back(need.share);
  return std::make_shared<StepArena>(shares);
}

std::vector<bool> kept_in_two(std::span<const StepNeed> whole, std::span<const StepNeed> in_two) {
  LT_CHECK(whole.size() == in_two.size(), "a forward is needed whole and in two");
  const size_t count = whole.size();
  std::vector<bool> smaller(count), every(count);
  for (size_t i = 0; i < count; ++i) {
    const int64_t kept = in_two[i].share.kept;
    every[i] = kept < whole[i].share.kept;
    smaller[i] = kept + sum(in_two[i].share.late) < whole[i].share.kept;
  }
  std::vector<bool> best(count);
  std::optional<int64_t> least;
  for (const std::vector<bool>& flags : {std::vector<bool>(count), smaller, every}) {
    std::vector<StepNeed> needs;
    for (size_t i = 0; i < count; ++i) needs.push_back(flags[i] ? in_two[i] : whole[i]);
    const int64_t peak = peak_of(needs);
    if (least && peak >= *least) continue;
    least = peak;
    best = flags;
  }
  return best;
}

std::vector<StepOption> options_of(std::span<const PlanNeeds> plans, bool is_pending, int64_t graph) {
  std::vector<StepOption> options;
  for (size_t i = 0; i < plans.size(); ++i) {
    const auto plan = static_cast<int32_t>(i);
    const double extra = plans[i].extra_milliseconds;
    options.push_back({need_of(plans[i].whole, is_pending, graph), false, plan, extra});
    options.push_back({need_of(plans[i].in_two, is_pending, graph), true, plan, extra});
  }
  return options;
}

StepFrontier::StepFrontier(std::vector<int64_t> places, std::map<int64_t, std::vector<StepOption>> options)
    : places_(std::move(places)), options_(std::move(options)) {
  LT_CHECK(!places_.empty(), "a step of no graph");
  std::vector<StepNeed> whole, in_two;
  for (const int64_t key : places_) {
    const std::vector<StepOption>& ways = options_.at(key);
    LT_CHECK(ways.size() >= 2, "a graph has a plan without a budget, whole and in two");
    whole.push_back(ways[0].need);
    in_two.push_back(ways[1].need);
  }
  const std::vector<bool> flags = kept_in_two(whole, in_two);
  for (size_t i = 0; i < places_.size(); ++i) chosen_.push_back(options_.at(places_[i])[flags[i] ? 1 : 0]);
  add(chosen_);
}

const StepFrontier::Point* StepFrontier::within(int64_t most_bytes) {
  while (floor_bytes() > most_bytes && go_on()) {
  }
  for (const Point& point : points_)
    if (point.size_bytes <= most_bytes) return &point;
  return nullptr;
}

void StepFrontier::add(std::vector<StepOption> chosen) {
  const std::vector<StepNeed> needs = needs_of(chosen);
  std::shared_ptr<StepArena> arena = arena_of(needs);
  const int64_t size = arena->size_bytes() + bytes_beside(needs);
  if (points_.empty() || size < floor_bytes()) points_.push_back({size, std::move(chosen), std::move(arena)});
}

bool StepFrontier::go_on() {
  if (is_at_end_) return false;
  if (find_change(chosen_)) {
    add(chosen_);
    return true;
  }
  is_at_end_ = true;
  std::vector<StepOption> smallest;
  for (const int64_t key : places_)
    smallest.push_back(*std::ranges::min_element(
        options_.at(key), {}, [](const StepOption& option) { return option.need.standing_bytes(); }));
  add(std::move(smallest));
  return true;
}

// Of one graph: the change that takes least time for its bytes, of the peak if there is one that lowers it.
bool StepFrontier::find_change(std::vector<StepOption>& chosen) const {
  struct Rank {
    bool keeps_peak;
    double milliseconds_per_byte;
    auto operator<=>(const Rank&) const = default;
  };
  const Size now = size_of(chosen);
  std::optional<Rank> best;
  std::vector<StepOption> found;
  for (const auto& [key, ways] : options_) {
    std::vector<size_t> where;
    for (size_t i = 0; i < places_.size(); ++i)
      if (places_[i] == key) where.push_back(i);
    if (where.empty()) continue;
    for (const StepOption& way : ways) {
      std::vector<StepOption> other = chosen;
      for (const size_t i : where) other[i] = way;
      const Size there = size_of(other);
      if (there.peak > now.peak || there >= now) continue;
      const int64_t lower = now.peak - there.peak;
      const double extra = way.extra_milliseconds - chosen[where.front()].extra_milliseconds;
      const Rank rank{lower == 0, static_cast<double>(where.size()) * extra /
                                      static_cast<double>(lower > 0 ? lower : now.standing - there.standing)};
      if (best && !(rank < *best)) continue;
      best = rank;
      found = std::move(other);
    }
  }
  if (best) chosen = std::move(found);
  return best.has_value();
}

}  // namespace lowtide
