// The placed buffers, sorted by offset: what first fit and best fit look into.
//
// A scan over all of them with two comparisons each beats interval trees up to some ten thousand buffers: the list is
// contiguous, the loop has one predictable branch, and first fit stops at the first gap.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "pack/problem.h"

namespace lowtide {

struct Block {
  int64_t low, high;  // bytes [low, high)
  int32_t first, last;
  int32_t buffer;
};

constexpr int64_t align_up(int64_t offset, int64_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

class BlockList {
 public:
  void reserve(size_t count) { blocks_.reserve(count); }
  // Becomes the blocks of `other` that satisfy `wanted`.
  template <class Wanted>
  void assign_if(const BlockList& other, Wanted wanted) {
    blocks_.clear();
    for (const Block& block : other.blocks_) {
      if (wanted(block)) blocks_.push_back(block);
    }
  }
  const std::vector<Block>& blocks() const { return blocks_; }

  // The lowest offset at which `buffer` (of that padded size) meets no placed block.
  int64_t first_fit(const Buffer& buffer, int64_t size) const {
    const int32_t first = buffer.first, last = buffer.last;
    int64_t top = 0;  // all bytes below are taken or too narrow
    for (const Block& block : blocks_) {
      const bool together = block.first <= last && first <= block.last;
      if (together & (block.low - top >= size)) {
        const int64_t offset = align_up(top, buffer.alignment);
        if (block.low - offset >= size) return offset;
      }
      top = std::max(top, together ? block.high : 0);
    }
    return align_up(top, buffer.alignment);
  }

  // The offset in the narrowest gap that holds `buffer`; on top of everything only if no gap does.
  int64_t best_fit(const Buffer& buffer, int64_t size) const;

  void insert(const Block& block) {
    const auto at = std::upper_bound(blocks_.begin(), blocks_.end(), block.low,
                                     [](int64_t low, const Block& other) { return low < other.low; });
    blocks_.insert(at, block);
  }

 private:
  std::vector<Block> blocks_;  // by low
};

}  // namespace lowtide
