#include "schedule/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace lowtide {
namespace {

// The slow oracle: every position's sum on its own.
class Sums {
 public:
  explicit Sums(int32_t positions) : bytes_(static_cast<size_t>(positions), 0) {}
  void add(Stretch stretch, int64_t bytes) {
    for (int32_t i = std::max(stretch.first, 0); i <= stretch.last && i < static_cast<int32_t>(bytes_.size()); ++i)
      bytes_[static_cast<size_t>(i)] += bytes;
  }
  int64_t peak_within(Stretch stretch) const {
    const auto begin = bytes_.begin() + std::max(stretch.first, 0);
    const auto end = bytes_.begin() + std::min(stretch.last + 1, static_cast<int32_t>(bytes_.size()));
    return begin < end ? *std::max_element(begin, end) : 0;
  }
  int32_t peak_position() const {
    return static_cast<int32_t>(std::max_element(bytes_.begin(), bytes_.end()) - bytes_.begin());
  }

 private:
  std::vector<int64_t> bytes_;
};

TEST(Timeline, IsTheSumOfTheLivesWhateverChanges) {
  constexpr unsigned kSeed = 20;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  const auto below = [&](int32_t most) { return static_cast<int32_t>(random() % static_cast<uint32_t>(most)); };
  for (int run = 0; run < 200; ++run) {
    const int32_t positions = 1 + below(run < 20 ? 4 : 150);
    // Some begin before the first position or end behind the last one, some are empty.
    const auto stretch = [&] { return Stretch{below(positions + 4) - 2, below(positions + 4) - 2}; };
    Timeline timeline(positions);
    Sums sums(positions);
    std::vector<std::pair<Stretch, int64_t>> lives;
    for (int step = 0; step < 60; ++step) {
      const int what = lives.empty() ? 0 : below(3);
      if (what == 0) {
        lives.emplace_back(stretch(), 1 + below(1 << 20));
        timeline.add(lives.back().first, lives.back().second);
        sums.add(lives.back().first, lives.back().second);
      } else {
        const size_t at = static_cast<size_t>(below(static_cast<int32_t>(lives.size())));
        auto& [life, bytes] = lives[at];
        sums.add(life, -bytes);
        if (what == 1) {
          const Stretch now = stretch();
          timeline.change(life, now, bytes);
          sums.add(life = now, bytes);
        } else {
          timeline.remove(life, bytes);
          lives.erase(lives.begin() + static_cast<std::ptrdiff_t>(at));
        }
      }
      ASSERT_EQ(timeline.peak(), sums.peak_within({0, positions - 1})) << "run " << run << ", step " << step;
      ASSERT_EQ(timeline.peak_position(), sums.peak_position()) << "run " << run << ", step " << step;
      const Stretch asked = stretch();
      ASSERT_EQ(timeline.peak_within(asked), sums.peak_within(asked)) << "run " << run << ", step " << step;
      const int32_t position = below(positions);
      ASSERT_EQ(timeline.bytes_at(position), sums.peak_within({position, position}));
    }
  }
}

TEST(Timeline, WithoutPositionsHoldsNothing) {
  Timeline timeline(0);
  timeline.add({0, 5}, 100);
  EXPECT_EQ(timeline.peak(), 0);
  EXPECT_EQ(timeline.peak_position(), -1);
  EXPECT_EQ(timeline.peak_within({0, 5}), 0);
}

}  // namespace
}  // namespace lowtide
