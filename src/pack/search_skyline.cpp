#include <algorithm>
#include <array>

#include "pack/packers.h"
#include "pack/random.h"
#include "pack/search.h"
#include "pack/skyline.h"

namespace lowtide {
namespace {

// Widths of the noise that is put on keys (2^-16 octaves of life).
constexpr int32_t kSampleNoise = 2800;
constexpr int32_t kStepNoise = 4700;

class SkylineSearch {
 public:
  SkylineSearch(const Problem& problem, uint64_t seed)
      : problem_(problem), skyline_(problem), random_(seed), rank_(problem.buffers.size(), 0) {
    best_offsets_.assign(problem.buffers.size(), 0);
  }

  void run(const SearchBudget& budget) {
    sample(std::min<int64_t>(120, budget.moves), budget.work);
    const int64_t sampled = skyline_.work();
    for (int64_t move = 0; move < budget.moves && skyline_.work() < budget.work && best_ > 0; ++move) {
      const double left =
          1.0 - std::max(static_cast<double>(move) / static_cast<double>(budget.moves),
                         static_cast<double>(skyline_.work() - sampled) / static_cast<double>(budget.work));
      try_move(kTolerance * static_cast<double>(skyline_.bound()) * left);
    }
  }

  const std::vector<int64_t>& best_offsets() const { return best_offsets_; }

 private:
  using Raise = Skyline::Raise;

  bool meets(int32_t buffer, int32_t first, int32_t last) const {
    return skyline_.sections().first[buffer] <= last && skyline_.sections().last[buffer] >= first;
  }

  // Sum of three uniform numbers: nearly normal, mean zero.
  int64_t noise(int32_t width) {
    return random_.between(0, width) + random_.between(0, width) + random_.between(0, width) - 3 * width / 2;
  }

  // Starts from the best of some weights of the size, the later ones random and with a little noise.
  void sample(int64_t count, int64_t work) {
    constexpr std::array<int32_t, 4> kFirstWeights = {0, 100, 200, 500};
    for (size_t i = 0; i < static_cast<size_t>(count) && skyline_.work() < work && best_ > 0; ++i) {
      const int32_t r = random_.between(0, 1023);
      const int32_t weight = i < kFirstWeights.size() ? kFirstWeights[i] : r * r / 1024 * 600 / 1024;
      keys_ = priority_keys(problem_, skyline_.sections(), weight);
      if (i >= 2 * kFirstWeights.size()) {
        for (int64_t& key : keys_) key += noise(kSampleNoise);
      }
      priority_ = priority_order(problem_, keys_);
      if (priority_.empty()) best_ = 0;
      if (best_ > 0 && skyline_.fill(priority_, best_ - 1)) keep();
    }
    priority_ = kept_priority_;
    keys_ = kept_keys_;
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
      const bool blocked =
          turns_[buffer] < raise.turn && offsets_[buffer] + padded_size(problem_.buffers[buffer]) > raise.low;
      if (blocked && meets(buffer, first, last) && random_.below(++count) == 0) wall = buffer;
    }
    return wall < 0 ? std::pair(-1, -1) : std::pair(late, wall);
  }

  // Puts noise on the keys of the buffers that live in some stretch of sections, at times all of them.
  void shake() {
    const auto sections = static_cast<int32_t>(skyline_.sections().live.size());
    int32_t first = 0, last = sections - 1;
    if (random_.chance(50)) {
      first = random_.between(0, sections - 1);
      last = std::min(last, first + random_.between(0, sections / 4));
    }
    const int32_t width = kStepNoise >> random_.below(5);
    for (const int32_t buffer : kept_priority_) {
      if (meets(buffer, first, last)) keys_[buffer] += noise(width);
    }
    priority_ = priority_order(problem_, keys_);
  }

  void try_move(double tolerance) {
    if (random_.chance(40)) {
      shake();
    } else {
      const auto [late, early] = choose_move();
      if (late == early) return;
      keys_[late] = keys_[early];
      const auto begin = priority_.begin();
      std::rotate(begin + rank_[early], begin + rank_[late], begin + rank_[late] + 1);
    }
    if (skyline_.fill(priority_, excess_ + static_cast<int64_t>(tolerance * random_.unit()))) {
      keep();
    } else {
      priority_ = kept_priority_;
      keys_ = kept_keys_;
    }
  }

  void keep() {
    kept_priority_ = priority_;
    kept_keys_ = keys_;
    for (size_t k = 0; k < priority_.size(); ++k) rank_[priority_[k]] = static_cast<int32_t>(k);
    excess_ = skyline_.excess();
    offsets_ = skyline_.offsets();
    turns_ = skyline_.turns();
    raises_ = skyline_.raises();
    if (excess_ >= best_) return;
    best_ = excess_;
    best_offsets_ = offsets_;
  }

  static constexpr double kTolerance = 0.0005;  // of the bound

  const Problem& problem_;
  Skyline skyline_;
  SplitMix random_;
  // What is tried next, and the state last accepted. The order is that of the keys, but for single moves.
  std::vector<int32_t> priority_, kept_priority_;
  std::vector<int64_t> keys_, kept_keys_;
  std::vector<int32_t> rank_;  // rank_[kept_priority_[k]] == k
  int64_t excess_ = 0;
  std::vector<int64_t> offsets_;
  std::vector<int32_t> turns_;
  std::vector<Raise> raises_;
  // The best one met.
  int64_t best_ = Skyline::kNoLimit;
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
