// The placed buffers, sorted by offset: what first fit and best fit look into.
//
// A scan over all of them beats interval trees up to some ten thousand buffers: their lives lie in arrays of their own,
// of which 32 at a time are compared without a branch, few blocks live together with a buffer, and first fit stops
// at the first gap.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
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
  void reserve(size_t count) {
    blocks_.reserve(count);
    firsts_.reserve(count + kTail);
    lasts_.reserve(count + kTail);
  }
  // Becomes the blocks of `other` that satisfy `wanted`.
  template <class Wanted>
  void assign_if(const BlockList& other, Wanted wanted) {
    blocks_.clear();
    firsts_.clear();
    lasts_.clear();
    for (const Block& block : other.blocks_) {
      if (!wanted(block)) continue;
      blocks_.push_back(block);
      firsts_.push_back(block.first);
      lasts_.push_back(block.last);
    }
    firsts_.resize(blocks_.size() + kTail, kNever);
    lasts_.resize(blocks_.size() + kTail, kNever);
  }
  const std::vector<Block>& blocks() const { return blocks_; }

  // The lowest offset at which `buffer` (of that padded size) meets no placed block.
  int64_t first_fit(const Buffer& buffer, int64_t size) const {
    int64_t top = 0;  // all bytes below are taken or too narrow
    for (size_t begin = 0; begin < blocks_.size(); begin += kGroup) {
      size_t word = begin;
      for (uint64_t together : live_together(begin, buffer)) {
        for (; together != 0; together &= together - 1) {
          const size_t at = word + static_cast<size_t>(std::countr_zero(together)) / 8;
          if (at >= blocks_.size()) break;  // who lives always meets those of nobody as well
          const Block& block = blocks_[at];
          if (block.low - top >= size) {
            const int64_t offset = align_up(top, buffer.alignment);
            if (block.low - offset >= size) return offset;
          }
          top = std::max(top, block.high);
        }
        word += 8;
      }
    }
    return align_up(top, buffer.alignment);
  }

  // The offset in the narrowest gap that holds `buffer`; on top of everything only if no gap does.
  int64_t best_fit(const Buffer& buffer, int64_t size) const;

  void insert(const Block& block) {
    const auto at = std::upper_bound(blocks_.begin(), blocks_.end(), block.low,
                                     [](int64_t low, const Block& other) { return low < other.low; });
    const auto place = at - blocks_.begin();
    blocks_.insert(at, block);
    firsts_.insert(firsts_.begin() + place, block.first);
    lasts_.insert(lasts_.begin() + place, block.last);
  }

 private:
  static constexpr size_t kGroup = 32, kTail = kGroup - 1;
  static constexpr int32_t kNever = std::numeric_limits<int32_t>::min();

  // A byte for each of the group's blocks, 1 where it lives together with the buffer.
  std::array<uint64_t, kGroup / 8> live_together(size_t begin, const Buffer& buffer) const {
    const int32_t *firsts = firsts_.data() + begin, *lasts = lasts_.data() + begin;
    const int32_t first = buffer.first, last = buffer.last;
    std::array<uint8_t, kGroup> together;
    for (size_t i = 0; i < kGroup; ++i) together[i] = static_cast<uint8_t>((firsts[i] <= last) & (first <= lasts[i]));
    return std::bit_cast<std::array<uint64_t, kGroup / 8>>(together);
  }

  std::vector<Block> blocks_;                                          // by low
  std::vector<int32_t> firsts_ = std::vector<int32_t>(kTail, kNever);  // of them, and of nobody for the last group
  std::vector<int32_t> lasts_ = std::vector<int32_t>(kTail, kNever);
};

}  // namespace lowtide
