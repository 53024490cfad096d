#include "runtime/step_arena.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "pack/pack.h"
#include "pack/validator.h"

namespace lowtide {

StepArena::StepArena(const std::vector<StepShare>& shares) {
  const auto graphs = static_cast<int32_t>(shares.size());
  const int32_t end = 2 * graphs - 1;
  Problem problem;
  int64_t passing = 0;
  for (int32_t i = 0; i < graphs; ++i) {
    const StepShare& share = shares[static_cast<size_t>(i)];
    const int32_t backward = end - i;
    problem.buffers.push_back({share.kept, i, !share.is_pending ? i : share.is_pinned ? end : backward, 64});
    for (const int64_t bytes : share.late) problem.buffers.push_back({bytes, backward, end, 64});
    passing = std::max(passing, share.passing);
  }
  problem.buffers.push_back({passing, 0, std::max(end, 0), 64});  // one place for all
  const Solution solution = pack(problem, PackEffort::kThorough);
  if (std::optional<std::string> fault = validate(problem, solution)) LT_FAIL("the packing is wrong: ", *fault);
  size_bytes_ = solution.height;
  size_t next = 0;
  for (const StepShare& share : shares) {
    std::vector<Part>& parts = parts_.emplace_back();
    parts.push_back({solution.offsets[next++], share.kept});
    parts.push_back({solution.offsets.back(), share.passing});
    for (const int64_t bytes : share.late) parts.push_back({solution.offsets[next++], bytes});
  }
}

bool StepArena::begin(BlockPool& pool, int64_t most_bytes) {
  std::lock_guard lock(mutex_);
  held_.reset();
  taken_.clear();
  const bool is_free = block_.expired();
  block_.reset();
  if (!is_free) return false;
  held_ = pool.acquire(size_bytes_, {size_bytes_, most_bytes});
  block_ = held_;
  return true;
}

void StepArena::forwards_end() {
  std::lock_guard lock(mutex_);
  held_.reset();
}

std::shared_ptr<Block> StepArena::take(size_t graph, size_t which, int64_t size_bytes) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Block> whole = block_.lock();
  if (!whole || graph >= parts_.size() || which >= parts_[graph].size()) return nullptr;
  const Part part = parts_[graph][which];
  if (size_bytes > part.size_bytes || size_bytes == 0) return nullptr;
  std::erase_if(taken_, [](const Taken& taken) { return taken.block.expired(); });
  for (const Taken& taken : taken_)
    if (part.offset < taken.part.offset + taken.part.size_bytes && taken.part.offset < part.offset + part.size_bytes)
      return nullptr;
  auto* const place = new Block{whole->data + part.offset, part.size_bytes};
  // Who watches the place does not hold the whole.
  std::shared_ptr<Block> block(place, [whole = std::move(whole)](Block* returned) mutable {
    delete returned;
    whole.reset();
  });
  taken_.push_back({part, block});
  return block;
}

}  // namespace lowtide
