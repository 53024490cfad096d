// Bytes that are live at each position of an order, kept up to date while lives change.
//
//   bytes
//     │        ▁▁▆▆▆▆▁▁            a segment tree over the positions: each node holds what was added to its whole
//     │   ▁▁▆▆▆████████▆▆▁▁        interval, and the largest sum below it
//     └─────────┴──────────────▶ position
//
// A change costs O(log positions) time, whatever it is: a life that grows or shrinks, a value that is made again, the
// scratch of one step. The peak costs O(1), where it is O(log positions). Memory: two numbers a node, at most four
// nodes a position.
#pragma once

#include <cstdint>
#include <vector>

namespace lowtide {

// Closed; empty where `last` is less than `first`.
struct Stretch {
  int32_t first = 0;
  int32_t last = -1;
  friend bool operator==(const Stretch&, const Stretch&) = default;
};

class Timeline {
 public:
  // Positions [0, positions), nothing live.
  explicit Timeline(int32_t positions);

  // Bytes that live over the stretch, from now on also; what lies outside of the positions is left out.
  void add(Stretch stretch, int64_t bytes);
  void remove(Stretch stretch, int64_t bytes) { add(stretch, -bytes); }
  // The life of `bytes` that were added over `from`.
  void change(Stretch from, Stretch to, int64_t bytes);

  // The most bytes that are live at once; 0 without positions.
  int64_t peak() const { return highest_.empty() ? 0 : highest_[1]; }
  // The first position with that many; -1 without positions.
  int32_t peak_position() const;
  // The most that are live within the stretch; 0 where it is empty.
  int64_t peak_within(Stretch stretch) const;
  int64_t bytes_at(int32_t position) const { return peak_within({position, position}); }
  int32_t positions() const { return positions_; }

 private:
  int32_t positions_;
  int32_t leaves_ = 1;            // a power of two; the leaf of position p is node leaves_ + p
  std::vector<int64_t> added_;    // by node: to all of its interval
  std::vector<int64_t> highest_;  // by node: the largest sum in its interval, of what was added at the node and below
};

}  // namespace lowtide
