#include <algorithm>
#include <limits>

#include "base/check.h"
#include "pack/block_list.h"
#include "pack/packers.h"
#include "pack/random.h"
#include "pack/search.h"

namespace lowtide {
namespace {

class FirstFitSearch {
 public:
  FirstFitSearch(const Problem& problem, const Solution& start, double tolerance, uint64_t seed)
      : problem_(problem), bound_(lower_bound(problem)), tolerance_(tolerance), random_(seed) {
    for (const int32_t buffer : start.order) {
      if (problem.buffers[buffer].size_bytes > 0) current_.order.push_back(buffer);
    }
    current_.tops.assign(problem.buffers.size(), 0);
    position_.assign(problem.buffers.size(), 0);
    trial_ = current_;
    place_from(0, std::numeric_limits<double>::max());
    keep_trial(0);
    best_ = start.height;
    best_order_ = start.order;
  }

  void run(const SearchBudget& budget) {
    for (int64_t move = 0; move < budget.moves && work_ < budget.work && best_ > bound_; ++move) {
      const double left = 1.0 - std::max(static_cast<double>(move) / static_cast<double>(budget.moves),
                                         static_cast<double>(work_) / static_cast<double>(budget.work));
      try_move(tolerance_ * static_cast<double>(bound_) * left);
    }
  }

  std::vector<int32_t> best_order() const { return best_order_; }

 private:
  struct State {
    std::vector<int32_t> order;
    std::vector<int64_t> tops;  // by buffer: where it ends
    BlockList blocks;
    int64_t height = 0;
    double cost = 0;
  };

  // The height counts; the bytes above the bound of all buffers together break ties and show progress.
  double cost(int64_t height, double above) const { return static_cast<double>(height - bound_) + 0.01 * above; }

  double above(int64_t top) const { return top > bound_ ? static_cast<double>(top - bound_) : 0.0; }

  // A random buffer that ends above `threshold`, or -1.
  int32_t culprit(int64_t threshold) {
    int32_t found = -1;
    uint32_t count = 0;
    for (const int32_t buffer : current_.order) {
      if (current_.tops[buffer] > threshold && random_.below(++count) == 0) found = buffer;
    }
    return found;
  }

  void try_move(double tolerance) {
    const int32_t buffer = culprit(random_.chance(70) ? current_.height - 1 : bound_);
    const int32_t from = position_[buffer];
    work_ += static_cast<int64_t>(current_.order.size());
    if (from == 0) return;
    // Half of the targets are near: they change little and are quick to try.
    int32_t to = static_cast<int32_t>(random_.below(static_cast<uint32_t>(from)));
    if (random_.chance(50)) {
      int32_t reach = from;
      while (reach > 1 && random_.chance(70)) reach /= 2;
      to = from - 1 - static_cast<int32_t>(random_.below(static_cast<uint32_t>(reach)));
    }
    trial_.order = current_.order;
    const auto begin = trial_.order.begin();
    if (random_.chance(70)) {
      std::rotate(begin + to, begin + from, begin + from + 1);
    } else {
      std::swap(begin[to], begin[from]);
    }
    const double limit = current_.cost + tolerance * random_.unit();
    if (place_from(to, limit)) keep_trial(to);
  }

  // Places trial_.order[from…]; everything before is as in current_. False as soon as the cost exceeds the limit.
  bool place_from(int32_t from, double limit) {
    trial_.blocks.assign_if(current_.blocks, [&](const Block& block) { return position_[block.buffer] < from; });
    trial_.height = bound_;
    double sum = 0;
    for (int32_t k = 0; k < from; ++k) {
      const int32_t buffer = trial_.order[k];
      trial_.tops[buffer] = current_.tops[buffer];
      trial_.height = std::max(trial_.height, trial_.tops[buffer]);
      sum += above(trial_.tops[buffer]);
    }
    work_ += 2 * static_cast<int64_t>(current_.order.size());
    for (size_t k = from; k < trial_.order.size(); ++k) {
      const int32_t index = trial_.order[k];
      const Buffer& buffer = problem_.buffers[index];
      const int64_t size = padded_size(buffer);
      const int64_t offset = trial_.blocks.first_fit(buffer, size);
      work_ += static_cast<int64_t>(trial_.blocks.blocks().size()) + 100;
      trial_.blocks.insert({offset, offset + size, buffer.first, buffer.last, index});
      trial_.tops[index] = offset + size;
      trial_.height = std::max(trial_.height, offset + size);
      sum += above(offset + size);
      if (cost(trial_.height, sum) > limit) return false;
    }
    trial_.cost = cost(trial_.height, sum);
    return true;
  }

  void keep_trial(int32_t from) {
    std::swap(current_, trial_);
    for (size_t k = from; k < current_.order.size(); ++k) position_[current_.order[k]] = static_cast<int32_t>(k);
    if (current_.height >= best_) return;
    best_ = current_.height;
    best_order_ = current_.order;
    for (size_t i = 0; i < problem_.buffers.size(); ++i) {
      if (problem_.buffers[i].size_bytes == 0) best_order_.push_back(static_cast<int32_t>(i));
    }
  }

  const Problem& problem_;
  const int64_t bound_;
  const double tolerance_;
  SplitMix random_;
  State current_, trial_;
  std::vector<int32_t> position_;  // by buffer: its place in current_.order
  int64_t best_ = 0;
  std::vector<int32_t> best_order_;
  int64_t work_ = 0;
};

}  // namespace

Solution search_first_fit(const Problem& problem, const Solution& start, double tolerance, uint64_t seed,
                          const SearchBudget& budget) {
  if (start.height == lower_bound(problem)) return start;
  FirstFitSearch search(problem, start, tolerance, seed);
  search.run(budget);
  return pack_in_order(problem, search.best_order());
}

}  // namespace lowtide
