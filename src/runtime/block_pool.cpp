#include "runtime/block_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/check.h"

namespace lowtide {

static constexpr int64_t kHugePage = int64_t{2} << 20;
static constexpr int64_t kMapFrom = int64_t{1} << 20;

static char* map(char* at, int64_t size_bytes, int flags) {
  void* raw = mmap(at, static_cast<size_t>(size_bytes), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
  return raw == MAP_FAILED ? nullptr : static_cast<char*>(raw);
}

static int64_t above_huge_page(const char* address) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(address) % kHugePage);
}

// Huge pages need an address of their own alignment. `mapped` goes back, and as much is mapped where a huge page
// begins: right below, where the system's addresses grow to. Only if that is taken, more is mapped, and both ends are
// cut off.
static char* map_aligned(char* mapped, int64_t size_bytes) {
  munmap(mapped, static_cast<size_t>(size_bytes));
  char* below = mapped - above_huge_page(mapped);
  if (char* found = map(below, size_bytes, MAP_FIXED_NOREPLACE)) {
    if (found == below) return found;
    munmap(found, static_cast<size_t>(size_bytes));  // a system that does not know the flag
  }
  char* begin = map(nullptr, size_bytes + kHugePage, 0);
  if (begin == nullptr) return nullptr;
  const int64_t above = above_huge_page(begin);
  const int64_t cut = above == 0 ? 0 : kHugePage - above;
  if (cut > 0) munmap(begin, static_cast<size_t>(cut));
  munmap(begin + cut + size_bytes, static_cast<size_t>(kHugePage - cut));
  return begin + cut;
}

static Block allocate(int64_t size_bytes) {
  if (size_bytes < kMapFrom) {
    void* data = std::aligned_alloc(64, static_cast<size_t>(size_bytes));
    return {static_cast<char*>(data), size_bytes};
  }
  char* begin = map(nullptr, size_bytes, 0);
  if (begin == nullptr) return {};
  if (size_bytes < kHugePage) return {begin, size_bytes};
  if (above_huge_page(begin) != 0) begin = map_aligned(begin, size_bytes);
  if (begin != nullptr) madvise(begin, static_cast<size_t>(size_bytes), MADV_HUGEPAGE);
  return {begin, size_bytes};
}

static void release(const Block& block) {
  if (block.size_bytes < kMapFrom) {
    std::free(block.data);
  } else {
    munmap(block.data, static_cast<size_t>(block.size_bytes));
  }
}

static int64_t granular(int64_t size_bytes) {
  const int64_t granule = size_bytes < kMapFrom ? 64 : 4096;
  return std::max<int64_t>((size_bytes + granule - 1) / granule * granule, 64);
}

Block BlockPool::take_free(int64_t least_bytes, int64_t most_bytes, bool to_work_in) {
  auto best = free_.end();
  for (auto at = free_.begin(); at != free_.end(); ++at)
    if (at->to_work_in == to_work_in && at->block.size_bytes >= least_bytes && at->block.size_bytes <= most_bytes &&
        (best == free_.end() || at->block.size_bytes < best->block.size_bytes))
      best = at;
  if (best == free_.end()) return {};
  const Block block = best->block;
  free_.erase(best);
  return block;
}

template <class Which>
void BlockPool::give_back_if(Which&& which) {
  std::erase_if(free_, [&](const Free& entry) {
    if (!which(entry)) return false;
    release(entry.block);
    return true;
  });
}

std::shared_ptr<Block> BlockPool::hand_out(Block block, int64_t wanted, bool to_work_in) {
  if (block.data == nullptr) block = allocate(wanted);
  if (block.data == nullptr) {
    trim();
    block = allocate(wanted);
  }
  LT_USER_CHECK(ErrorKind::kOutOfMemory, block.data != nullptr, "out of memory: could not allocate ", wanted,
                " bytes (", live_bytes(), " bytes are in use by lowtide)");
  auto* record = new Block(block);
  {
    std::lock_guard lock(mutex_);
    live_bytes_ += block.size_bytes;
  }
  return std::shared_ptr<Block>(record, [this, to_work_in](Block* returned) {
    give_back(*returned, to_work_in);
    delete returned;
  });
}

std::shared_ptr<Block> BlockPool::acquire(int64_t size_bytes, BlockLimits limits) {
  const int64_t wanted = granular(size_bytes);
  Block block;
  {
    std::lock_guard lock(mutex_);
    block = take_free(wanted, std::max(wanted, std::min(wanted + wanted / 4, limits.largest)), false);
    const int64_t taken = block.data == nullptr ? wanted : block.size_bytes;
    keep_free(std::max<int64_t>(limits.together - taken, 0));
  }
  return hand_out(block, wanted, false);
}

std::shared_ptr<Block> BlockPool::acquire_in_place(int64_t size_bytes, int64_t largest) {
  const int64_t wanted = granular(size_bytes);
  Block block;
  {
    std::lock_guard lock(mutex_);
    block = take_free(wanted, std::max(wanted, largest), false);
    if (block.data == nullptr) keep_free(std::max<int64_t>(bytes_that_are_free() - wanted, 0));
  }
  return hand_out(block, wanted, false);
}

std::shared_ptr<Block> BlockPool::acquire_to_work_in(int64_t size_bytes, int64_t together) {
  Block block;
  int64_t wanted = 0;
  {
    std::lock_guard lock(mutex_);
    if (const int64_t step = now_; std::exchange(working_.step, step) != step)
      working_.last_largest = std::exchange(working_.largest, 0);
    working_.largest = std::max(working_.largest, granular(size_bytes));
    wanted = std::max(working_.largest, working_.last_largest);
    block = take_free(wanted, wanted, true);
    if (block.data == nullptr) {
      give_back_if([](const Free& entry) { return entry.to_work_in; });
      keep_free(std::max<int64_t>(together - wanted, 0));
    }
  }
  return hand_out(block, wanted, true);
}

void BlockPool::give_back(Block block, bool to_work_in) {
  std::lock_guard lock(mutex_);
  live_bytes_ -= block.size_bytes;
  if (keeping_none_ > 0)
    release(block);
  else
    free_.push_back({block, now_, to_work_in});
}

int64_t BlockPool::bytes_that_are_free() const {
  int64_t bytes = 0;
  for (const Free& entry : free_) bytes += entry.block.size_bytes;
  return bytes;
}

void BlockPool::keep_free(int64_t most_bytes) {
  for (int64_t bytes = bytes_that_are_free(); bytes > most_bytes;) {
    auto gone = free_.begin();  // the list is in the order in which blocks came back
    bool is_enough = false;
    for (auto at = free_.begin(); at != free_.end(); ++at) {
      const int64_t size = at->block.size_bytes;
      if (size < bytes - most_bytes || (is_enough && size >= gone->block.size_bytes)) continue;
      gone = at;
      is_enough = true;
    }
    bytes -= gone->block.size_bytes;
    release(gone->block);
    free_.erase(gone);
  }
}

void BlockPool::forward_begins() {
  constexpr int64_t kForwardsAStep = 64;
  if (pending_++ > 0 && ++forwards_ < kForwardsAStep) return;
  forwards_ = 0;
  ++now_;
}

void BlockPool::trim(int64_t age) {
  std::lock_guard lock(mutex_);
  give_back_if([&](const Free& entry) { return now_ - entry.since >= age; });
}

int64_t BlockPool::live_bytes() const {
  std::lock_guard lock(mutex_);
  return live_bytes_;
}

int64_t BlockPool::free_bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_that_are_free();
}

BlockPool::~BlockPool() { trim(); }

BlockPool& process_pool() {
  static BlockPool* pool = new BlockPool;
  return *pool;
}

}  // namespace lowtide
