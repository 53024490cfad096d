#include "pack/validator.h"

#include "base/text.h"

namespace lowtide {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 60;

struct Rectangle {
  int64_t low, high;  // bytes [low, high)
  int64_t first, last;
};

std::string describe(size_t index, const Rectangle& r) {
  return concat("buffer ", index, " (bytes [", r.low, ", ", r.high, "), steps [", r.first, ", ", r.last, "])");
}

}  // namespace

std::optional<std::string> validate(const Problem& problem, const Solution& solution) {
  const size_t count = problem.buffers.size();
  if (solution.offsets.size() != count) {
    return concat("expected ", count, " offsets, found ", solution.offsets.size());
  }
  std::vector<Rectangle> placed;
  placed.reserve(count);
  int64_t highest = 0;
  for (size_t i = 0; i < count; ++i) {
    const Buffer& buffer = problem.buffers[i];
    const int64_t offset = solution.offsets[i];
    if (buffer.size_bytes < 0 || buffer.alignment < 1 || buffer.first > buffer.last) {
      return concat("buffer ", i, " has a negative size, no alignment or a negative lifetime");
    }
    const int64_t tail = buffer.size_bytes % buffer.alignment;
    const int64_t owned = tail == 0 ? buffer.size_bytes : buffer.size_bytes + (buffer.alignment - tail);
    if (offset > kMostBytes || owned > kMostBytes || owned < 0) return concat("buffer ", i, " ends beyond 2^61 bytes");
    const Rectangle r{offset, offset + owned, buffer.first, buffer.last};
    if (offset < 0) return concat(describe(i, r), " has a negative offset");
    if (offset % buffer.alignment != 0) {
      return concat(describe(i, r), " is misaligned: expected a multiple of ", buffer.alignment);
    }
    if (r.high > highest) highest = r.high;
    placed.push_back(r);
  }
  for (size_t i = 0; i < count; ++i) {
    const Rectangle a = placed[i];
    if (a.low == a.high) continue;
    for (size_t j = i + 1; j < count; ++j) {
      const Rectangle& b = placed[j];
      const bool together = a.first <= b.last && b.first <= a.last;
      if (together && a.low < b.high && b.low < a.high && b.low != b.high) {
        return concat(describe(i, a), " overlaps ", describe(j, b));
      }
    }
  }
  if (solution.height != highest) {
    return concat("the height is given as ", solution.height, " but the buffers end at ", highest);
  }
  return std::nullopt;
}

}  // namespace lowtide
