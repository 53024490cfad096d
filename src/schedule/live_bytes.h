// How many bytes a graph keeps alive at each node of an order, at sizes in numbers: an estimate, since the kernels are
// not chosen yet. Emission may copy and adds scratch; what it does in place is known where lifetimes were found with
// takeovers.
#pragma once

#include <span>
#include <vector>

#include "schedule/lifetimes.h"
#include "schedule/timeline.h"
#include "symbolic/dim.h"

namespace lowtide {

// What a value takes in an arena, whose buffers begin at multiples of 64 bytes.
constexpr int64_t padded_bytes(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// By value, the padded bytes of its elements; 0 for those of which a plan keeps none in the arena.
std::vector<int64_t> arena_bytes(const Graph& graph, const Lifetimes& lifetimes, const DimValues& dims);

// Positions are those of the order.
Timeline live_bytes(const Lifetimes& lifetimes, std::span<const int64_t> bytes, size_t positions);

}  // namespace lowtide
