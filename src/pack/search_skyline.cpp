#include <algorithm>

#include "pack/packers.h"
#include "pack/random.h"
#include "pack/search.h"
#include "pack/skyline.h"

namespace lowtide {
namespace {

class SkylineSearch {
 public:
  SkylineSearch(const Problem& problem, uint64_t seed)
      : skyline_(problem), random_(seed), priority_(longest_life_first(problem)), rank_(problem.buffers.size(), 0) {
    for (const Buffer& buffer : problem.buffers) size_.push_back(padded_size(buffer));
    if (priority_.empty()) {
      best_offsets_.assign(problem.buffers.size(), 0);
      return;
    }
    skyline_.fill(priority_);
    best_ = skyline_.excess();
    best_offsets_ = skyline_.offsets();
    keep();
  }

  void run(const SearchBudget& budget) {
    for (int64_t move = 0; move < budget.moves && skyline_.work() < budget.work && best_ > 0; ++move) {
      const double left = 1.0 - std::max(static_cast<double>(move) / static_cast<double>(budget.moves),
                                         static_cast<double>(skyline_.work()) / static_cast<double>(budget.work));
      try_move(0.002 * static_cast<double>(skyline_.bound()) * left);
    }
  }

  const std::vector<int64_t>& best_offsets() const { return best_offsets_; }

 private:
  using Raise = Skyline::Raise;

  bool meets(int32_t buffer, int32_t first, int32_t last) const {
    return skyline_.sections().first[buffer] <= last && skyline_.sections().last[buffer] >= first;
  }

  // Where bytes were given up: mostly under a section that made the arena as high as it is, in proportion to the bytes.
  const Raise& choose_raise() {
    int32_t section = -1;
    if (random_.chance(90)) {
      uint32_t count = 0;
      for (const Raise& raise : raises_) {
        if (raise.excess * 2 >= excess_ && random_.below(++count) == 0) section = raise.fullest;
      }
    }
    double total = 0;
    const Raise* chosen = &raises_.front();
    for (const Raise& raise : raises_) {
      if (section >= 0 && (section < raise.first || section > raise.last)) continue;
      const double weight = section < 0 ? 1.0 : static_cast<double>(raise.high - raise.low);
      total += weight;
      if (random_.unit() * total < weight) chosen = &raise;
    }
    return *chosen;
  }

  // Two buffers: the first is to be put before the second. {-1, -1} if the choice came to nothing.
  std::pair<int32_t, int32_t> choose_move() {
    if (raises_.empty() || random_.chance(20)) {
      const auto count = static_cast<uint32_t>(priority_.size());
      const int32_t a = priority_[random_.below(count)], b = priority_[random_.below(count)];
      return rank_[a] > rank_[b] ? std::pair(a, b) : std::pair(b, a);
    }
    const Raise raise = choose_raise();
    int32_t late = -1, wall = -1;
    uint32_t count = 0;
    for (const int32_t buffer : priority_) {
      const bool waited = turns_[buffer] >= raise.turn && meets(buffer, raise.first, raise.last);
      if (waited && random_.below(++count) == 0) late = buffer;
    }
    if (late < 0) return {-1, -1};
    const int32_t first = skyline_.sections().first[late], last = skyline_.sections().last[late];
    count = 0;
    for (const int32_t buffer : priority_) {
      if (rank_[buffer] >= rank_[late]) break;
      const bool blocked = turns_[buffer] < raise.turn && offsets_[buffer] + size_[buffer] > raise.low;
      if (blocked && meets(buffer, first, last) && random_.below(++count) == 0) wall = buffer;
    }
    return wall < 0 ? std::pair(-1, -1) : std::pair(late, wall);
  }

  void try_move(double tolerance) {
    const auto [late, early] = choose_move();
    if (late == early) return;
    const auto from = priority_.begin() + rank_[late], to = priority_.begin() + rank_[early];
    std::rotate(to, from, from + 1);
    const int64_t limit = excess_ + static_cast<int64_t>(tolerance * random_.unit());
    if (!skyline_.fill(priority_, limit)) {
      std::rotate(to, to + 1, from + 1);
      return;
    }
    keep();
    if (excess_ >= best_) return;
    best_ = excess_;
    best_offsets_ = offsets_;
  }

  void keep() {
    excess_ = skyline_.excess();
    offsets_ = skyline_.offsets();
    turns_ = skyline_.turns();
    raises_ = skyline_.raises();
    for (size_t k = 0; k < priority_.size(); ++k) rank_[priority_[k]] = static_cast<int32_t>(k);
  }

  Skyline skyline_;
  SplitMix random_;
  std::vector<int64_t> size_;
  // The accepted state.
  std::vector<int32_t> priority_, rank_;  // rank_[priority_[k]] == k
  int64_t excess_ = 0;
  std::vector<int64_t> offsets_;
  std::vector<int32_t> turns_;
  std::vector<Raise> raises_;
  // The best one met.
  int64_t best_ = 0;
  std::vector<int64_t> best_offsets_;
};

}  // namespace

Solution search_skyline(const Problem& problem, uint64_t seed, const SearchBudget& budget) {
  check_problem(problem);
  SkylineSearch search(problem, seed);
  search.run(budget);
  return settle(problem, search.best_offsets());
}

}  // namespace lowtide
