// Fills the arena from the bottom: looks for the sections where the filled part is lowest and puts there, of the
// buffers that live only in these sections, the first in a priority order; if none fits, the bytes up to the lower
// neighbour are given up and the sections join it.
//
//   ▓▓▓▓        ▓▓▓▓▓     the valley in the middle is the lowest segment: b and c fit into it, a does not;
//   ▓▓▓▓▓▓▓▓    ▓▓▓▓▓     with neither b nor c left it is raised to the step on its left
//   ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓
//           └bb┘
//           └c┘
//       └──a───┘
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "pack/problem.h"
#include "pack/sections.h"

namespace lowtide {

// Keys of a priority order: log2(life in sections) + size_weight × log2(size), in units of 2^-16 and by buffer. The
// longest life first (weight 0) nests lifetimes best; some weight on the size keeps large buffers from coming too late.
// Integers throughout, so that an order is the same on every machine.
std::vector<int64_t> priority_keys(const Problem& problem, const Sections& sections, int32_t size_weight_1024);

// The buffers of more than zero bytes by descending key; among equals the larger first.
std::vector<int32_t> priority_order(const Problem& problem, const std::vector<int64_t>& keys);

class Skyline {
 public:
  explicit Skyline(const Problem& problem);

  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  // Places the buffers of `priority` (all of more than zero bytes). False, and results that mean nothing, as soon as
  // the height must exceed the lower bound by more than `limit`.
  bool fill(std::span<const int32_t> priority, int64_t limit = kNoLimit);

  // Sections [first, last] were raised from `low` to `high` although buffers that live there were still waiting.
  struct Raise {
    int32_t first, last;
    int64_t low, high;
    int32_t turn;    // how many buffers had been placed
    int64_t excess;  // by how much the fullest of these sections must exceed the lower bound since; may be negative
    int32_t fullest;
  };

  int64_t excess() const { return excess_; }                        // height − lower bound
  const std::vector<int64_t>& offsets() const { return offsets_; }  // by buffer
  const std::vector<int32_t>& turns() const { return turns_; }      // by buffer: when it was placed
  const std::vector<Raise>& raises() const { return raises_; }
  const Sections& sections() const { return sections_; }
  int64_t bound() const { return bound_; }
  int64_t work() const { return work_; }  // elementary steps so far, about a nanosecond each

 private:
  struct Segment {
    int32_t first, last;
    int64_t height;
  };

  size_t lowest_segment() const;
  int32_t choose(const Segment& segment);
  void place(int32_t buffer, size_t at);
  void raise(size_t at);
  void join_neighbours(size_t at);
  void forget_placed();

  std::vector<int64_t> size_, alignment_;  // by buffer
  Sections sections_;
  std::vector<int32_t> bucket_begin_, bucket_;  // the buffers by their first section
  int64_t bound_ = 0;

  std::vector<int32_t> rank_;       // by buffer: its place in the priority order
  std::vector<char> placed_;        // by buffer
  std::vector<Segment> segments_;   // from the first section to the last
  std::vector<int64_t> remaining_;  // by section: bytes still to be placed
  std::span<const int32_t> priority_;
  // The first `waiting_.size()` of those not placed (some placed ones linger), with their sections beside them.
  std::vector<int32_t> waiting_, waiting_first_, waiting_last_;
  int32_t placed_count_ = 0;

  int64_t excess_ = 0;
  std::vector<int64_t> offsets_;
  std::vector<int32_t> turns_;
  std::vector<Raise> raises_;
  int64_t work_ = 0;
};

}  // namespace lowtide
