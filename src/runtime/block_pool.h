// Memory of the engine: blocks mapped once, kept between steps, huge pages advised before first touch. PyTorch's own
// CPU allocator gives large blocks back to the kernel on every free and pays hundreds of thousands of page faults a
// step.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace lowtide {

struct Block {
  char* data = nullptr;
  int64_t size_bytes = 0;
};

// What bounds a block where a budget does.
struct BlockLimits {
  int64_t largest = INT64_MAX;   // a block that is there already and larger is not taken
  int64_t together = INT64_MAX;  // of the block and all that are free: others are given back before one is mapped
};

// One per process (PyTorch's threads and several sessions share it); safe to use from any thread. A block returns when
// its last reference is dropped, which needs no lock of Python's.
class BlockPool {
 public:
  // At least `size_bytes` bytes, 64-byte aligned (page-aligned from 1 MiB), contents arbitrary. Reuses the free block
  // that fits best (at most a quarter larger); on a failed allocation frees what is free and tries again; then
  // Error(kOutOfMemory).
  std::shared_ptr<Block> acquire(int64_t size_bytes, BlockLimits limits = {});
  // A free block of at most `largest` serves; where none is, free ones of as many bytes are given back for it.
  std::shared_ptr<Block> acquire_in_place(int64_t size_bytes, int64_t largest);
  // For as long as half of a step works: all of these are as large as the largest of this step or the last one, so that
  // each can be the same, which serves nothing else.
  // `together`: as BlockLimits has it, where one is mapped.
  std::shared_ptr<Block> acquire_to_work_in(int64_t size_bytes, int64_t together);
  // Gives free blocks back to the system: those that no acquire has used for `age` steps; 0: all.
  void trim(int64_t age = 0);
  // Blocks age with steps, not with forwards: a step of several graphs has many, all pending until its backward.
  // Whoever keeps forwards pending for ever ages them by forwards in dozens.
  void forward_begins();
  void forward_is_gone() { --pending_; }

  // As long as one is there, blocks go back to the system when they return: somebody else works in the same memory, and
  // what is kept here for the engine's next half is beside what he needs then.
  class KeepsNone {
   public:
    explicit KeepsNone(BlockPool& pool) : pool_(pool) {
      if (pool_.keeping_none_++ == 0) pool_.trim();
    }
    ~KeepsNone() { --pool_.keeping_none_; }
    KeepsNone(const KeepsNone&) = delete;
    KeepsNone& operator=(const KeepsNone&) = delete;

   private:
    BlockPool& pool_;
  };

  int64_t live_bytes() const;  // handed out
  int64_t free_bytes() const;  // kept for reuse
  ~BlockPool();

 private:
  struct Free {
    Block block;
    int64_t since = 0;
    bool to_work_in = false;
  };
  // Under the lock. The smallest that serves, or none.
  Block take_free(int64_t least_bytes, int64_t most_bytes, bool to_work_in);
  int64_t bytes_that_are_free() const;
  template <class Which>
  void give_back_if(Which&& which);
  // Gives blocks back to the system until no more than that many bytes are free: the smallest that is enough, else
  // those that have waited longest.
  void keep_free(int64_t most_bytes);

  // Without it. Of the system where `block` is none.
  std::shared_ptr<Block> hand_out(Block block, int64_t wanted, bool to_work_in);
  void give_back(Block block, bool to_work_in);

  mutable std::mutex mutex_;
  std::vector<Free> free_;
  int64_t live_bytes_ = 0;
  struct {
    int64_t step = 0;  // the latest that had one
    int64_t largest = 0, last_largest = 0;
  } working_;
  std::atomic<int64_t> now_ = 0;
  std::atomic<int64_t> pending_ = 0;
  std::atomic<int64_t> forwards_ = 0;  // since blocks have aged
  std::atomic<int> keeping_none_ = 0;
};

// The process's pool. Its blocks may outlive every session (a user keeps outputs), so it is never destroyed.
BlockPool& process_pool();

}  // namespace lowtide
