#include "pack/packers.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "base/check.h"
#include "pack/block_list.h"
#include "pack/sections.h"

namespace lowtide {
namespace {

int64_t duration(const Buffer& buffer) { return int64_t{buffer.last} - buffer.first + 1; }

// Only compared, so the rounding of a double does no harm (the product may need more than 64 bits).
double area(const Buffer& buffer) {
  return static_cast<double>(padded_size(buffer)) * static_cast<double>(duration(buffer));
}

// The buffers by ascending key(buffer, index), a tuple; ties by index.
template <class Key>
std::vector<int32_t> order_by(const Problem& problem, Key key) {
  std::vector<std::pair<decltype(key(Buffer{}, 0)), int32_t>> keyed;
  keyed.reserve(problem.buffers.size());
  for (size_t i = 0; i < problem.buffers.size(); ++i) {
    keyed.emplace_back(key(problem.buffers[i], i), static_cast<int32_t>(i));
  }
  std::sort(keyed.begin(), keyed.end());
  std::vector<int32_t> order;
  order.reserve(keyed.size());
  for (const auto& [_, index] : keyed) order.push_back(index);
  return order;
}

// Places the buffers one by one where `fit(list, buffer, size)` says.
template <class Fit>
Solution place_all(const Problem& problem, std::span<const int32_t> order, Fit fit) {
  check_problem(problem);
  const size_t count = problem.buffers.size();
  LT_CHECK(order.size() == count, "the order has ", order.size(), " entries for ", count, " buffers");
  Solution solution;
  solution.offsets.assign(count, -1);
  solution.order.assign(order.begin(), order.end());
  BlockList list;
  list.reserve(count);
  for (const int32_t index : order) {
    LT_CHECK(index >= 0 && static_cast<size_t>(index) < count && solution.offsets[index] < 0,
             "the order is no permutation: entry ", index);
    const Buffer& buffer = problem.buffers[index];
    const int64_t size = padded_size(buffer);
    const int64_t offset = size == 0 ? 0 : fit(list, buffer, size);
    solution.offsets[index] = offset;
    solution.height = std::max(solution.height, offset + size);
    if (size > 0) list.insert({offset, offset + size, buffer.first, buffer.last, index});
  }
  return solution;
}

}  // namespace

Solution pack_in_order(const Problem& problem, std::span<const int32_t> order) {
  return place_all(problem, order, [](const BlockList& list, const Buffer& buffer, int64_t size) {
    return list.first_fit(buffer, size);
  });
}

Solution pack_by_size(const Problem& problem) {
  return pack_in_order(
      problem, order_by(problem, [](const Buffer& b, size_t) { return std::tuple(-padded_size(b), -duration(b)); }));
}

Solution pack_by_area(const Problem& problem) {
  return pack_in_order(problem,
                       order_by(problem, [](const Buffer& b, size_t) { return std::tuple(-area(b), -duration(b)); }));
}

Solution pack_by_duration(const Problem& problem) {
  return pack_in_order(
      problem, order_by(problem, [](const Buffer& b, size_t) { return std::tuple(-duration(b), -padded_size(b)); }));
}

Solution pack_by_start(const Problem& problem) {
  return pack_in_order(problem, order_by(problem, [](const Buffer& b, size_t) {
                         return std::tuple(int64_t{b.first}, -padded_size(b));
                       }));
}

Solution pack_by_pressure(const Problem& problem) {
  check_problem(problem);
  const Sections sections = split_into_sections(problem);
  std::vector<int64_t> fullest(problem.buffers.size(), 0);
  for (size_t i = 0; i < fullest.size(); ++i) {
    for (int32_t section = sections.first[i]; section <= sections.last[i]; ++section) {
      fullest[i] = std::max(fullest[i], sections.live[section]);
    }
  }
  return pack_in_order(problem,
                       order_by(problem, [&](const Buffer& b, size_t i) { return std::tuple(-fullest[i], -area(b)); }));
}

Solution pack_best_fit(const Problem& problem) {
  const auto order = order_by(problem, [](const Buffer& b, size_t) { return std::tuple(-area(b), -duration(b)); });
  const Solution loose = place_all(problem, order, [](const BlockList& list, const Buffer& buffer, int64_t size) {
    return list.best_fit(buffer, size);
  });
  return settle(problem, loose.offsets);
}

Solution settle(const Problem& problem, std::span<const int64_t> offsets) {
  // First fit in the order of the offsets: by induction everything below a buffer has sunk or stayed, so its old
  // offset is still free and first fit takes that one or a lower one.
  std::vector<int32_t> order(problem.buffers.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return offsets[a] < offsets[b]; });
  return pack_in_order(problem, order);
}

}  // namespace lowtide
