#include "pack/block_list.h"

#include <limits>

namespace lowtide {

int64_t BlockList::best_fit(const Buffer& buffer, int64_t size) const {
  int64_t top = 0, best = -1, narrowest = std::numeric_limits<int64_t>::max();
  for (const Block& block : blocks_) {
    if (block.first > buffer.last || buffer.first > block.last) continue;
    const int64_t offset = align_up(top, buffer.alignment);
    if (block.low - offset >= size && block.low - top < narrowest) {
      narrowest = block.low - top;
      best = offset;
    }
    top = std::max(top, block.high);
  }
  return best >= 0 ? best : align_up(top, buffer.alignment);
}

}  // namespace lowtide
