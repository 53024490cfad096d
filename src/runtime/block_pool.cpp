#include "runtime/block_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "base/check.h"

namespace lowtide {

static constexpr int64_t kHugePage = int64_t{2} << 20;
static constexpr int64_t kMapFrom = int64_t{1} << 20;

static Block allocate(int64_t size_bytes) {
  if (size_bytes < kMapFrom) {
    void* data = std::aligned_alloc(64, static_cast<size_t>(size_bytes));
    return {static_cast<char*>(data), size_bytes};
  }
  // Huge pages need an address of their own alignment: map more, cut off both ends.
  const int64_t mapped = size_bytes + (size_bytes >= kHugePage ? kHugePage : 0);
  void* raw = mmap(nullptr, static_cast<size_t>(mapped), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return {};
  char* begin = static_cast<char*>(raw);
  if (mapped != size_bytes) {
    char* aligned =
        reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(begin) + kHugePage - 1) / kHugePage * kHugePage);
    if (aligned != begin) munmap(begin, static_cast<size_t>(aligned - begin));
    char *end = begin + mapped, *wanted = aligned + size_bytes;
    if (end != wanted) munmap(wanted, static_cast<size_t>(end - wanted));
    begin = aligned;
    madvise(begin, static_cast<size_t>(size_bytes), MADV_HUGEPAGE);
  }
  return {begin, size_bytes};
}

static void release(const Block& block) {
  if (block.size_bytes < kMapFrom) {
    std::free(block.data);
  } else {
    munmap(block.data, static_cast<size_t>(block.size_bytes));
  }
}

std::shared_ptr<Block> BlockPool::acquire(int64_t size_bytes) {
  const int64_t granule = size_bytes < kMapFrom ? 64 : 4096;
  const int64_t wanted = std::max<int64_t>((size_bytes + granule - 1) / granule * granule, 64);
  Block block;
  {
    std::lock_guard lock(mutex_);
    auto best = free_.end();
    for (auto at = free_.begin(); at != free_.end(); ++at)
      if (at->block.size_bytes >= wanted && at->block.size_bytes <= wanted + wanted / 4 &&
          (best == free_.end() || at->block.size_bytes < best->block.size_bytes))
        best = at;
    if (best != free_.end()) {
      block = best->block;
      free_.erase(best);
    }
  }
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
  return std::shared_ptr<Block>(record, [this](Block* returned) {
    give_back(*returned);
    delete returned;
  });
}

void BlockPool::give_back(Block block) {
  std::lock_guard lock(mutex_);
  live_bytes_ -= block.size_bytes;
  free_.push_back({block, now_});
}

void BlockPool::trim(int64_t age) {
  std::lock_guard lock(mutex_);
  std::erase_if(free_, [&](const Free& entry) {
    if (now_ - entry.since < age) return false;
    release(entry.block);
    return true;
  });
}

int64_t BlockPool::live_bytes() const {
  std::lock_guard lock(mutex_);
  return live_bytes_;
}

int64_t BlockPool::free_bytes() const {
  std::lock_guard lock(mutex_);
  int64_t sum = 0;
  for (const Free& entry : free_) sum += entry.block.size_bytes;
  return sum;
}

BlockPool::~BlockPool() { trim(); }

BlockPool& process_pool() {
  static BlockPool* pool = new BlockPool;
  return *pool;
}

}  // namespace lowtide
