// What one step takes from the pool of blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "runtime/block_pool.h"

namespace lowtide {

// Under a budget: no more than that, together with what the pool keeps free.
class StepBlocks {
 public:
  // `planned`: all that will be taken. `rest`: of the budget, for that.
  StepBlocks(BlockPool& pool, int64_t planned, int64_t rest) : pool_(pool), planned_(planned), rest_(rest) {}
  std::shared_ptr<Block> take(int64_t size_bytes) {
    std::shared_ptr<Block> block =
        pool_.acquire(size_bytes, {size_bytes + std::max<int64_t>(rest_ - planned_, 0), rest_});
    planned_ -= size_bytes;
    rest_ -= block->size_bytes;
    return block;
  }

 private:
  BlockPool& pool_;
  int64_t planned_;
  int64_t rest_;
};

}  // namespace lowtide
