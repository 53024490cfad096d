#include <algorithm>
#include <vector>

#include "kernels/reference/reference.h"
#include "kernels/rooms.h"

namespace lowtide {

namespace {

// By op, best first: within an op the order is that of the rooms and of their lists.
const std::vector<Kernel>& sorted_kernels() {
  static const std::vector<Kernel> sorted = [] {
    std::vector<Kernel> kernels;
    const auto add = [&](std::span<const Kernel> list) { kernels.insert(kernels.end(), list.begin(), list.end()); };
#define LT_ROOM(room) add(cpu::room##_kernels());
    LT_ROOMS(LT_ROOM)
#undef LT_ROOM
    add(reference::kernels());
    std::stable_sort(kernels.begin(), kernels.end(), [](const Kernel& a, const Kernel& b) { return a.op < b.op; });
    return kernels;
  }();
  return sorted;
}

}  // namespace

std::span<const Kernel> all_kernels() { return sorted_kernels(); }

std::span<const Kernel> kernels_of(Op op) {
  const std::vector<Kernel>& kernels = sorted_kernels();
  auto begin = std::lower_bound(kernels.begin(), kernels.end(), op, [](const Kernel& k, Op o) { return k.op < o; });
  auto end = std::upper_bound(begin, kernels.end(), op, [](Op o, const Kernel& k) { return o < k.op; });
  return {begin, end};
}

const Kernel* find_kernel(std::string_view name) {
  for (const Kernel& kernel : sorted_kernels()) {
    if (name == kernel.name) return &kernel;
  }
  return nullptr;
}

}  // namespace lowtide
