#include "kernels/adapters/list.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/reference/reference.h"

namespace lowtide {

namespace {

constexpr Kernel reference_kernel(Op op, const char* name, KernelFunction run, int8_t in_place,
                                  int64_t (*scratch)(const KernelCall&)) {
  Kernel kernel{op, name, "reference", run, nullptr};
  kernel.scratch_bytes = scratch;
  kernel.accepts = Accept::kAny;
  kernel.in_place[0] = in_place;
  return kernel;
}

// Best first within an op.
const Kernel kKernels[] = {
#define LT_KERNEL(op_name, kernel_name, provider_name, function, supports_function, ...) \
  {.op = Op::k##op_name,                                                                 \
   .name = kernel_name,                                                                  \
   .provider = provider_name,                                                            \
   .run = adapters::function,                                                            \
   .supports = adapters::supports_function __VA_OPT__(, ) __VA_ARGS__},
#include "kernels/cpu/list.inc"

#define LT_HALF(op_name, function, f32_supports, f32_scratch) \
  {.op = Op::k##op_name,                                      \
   .name = "cpu." #op_name ".half",                           \
   .provider = "cpu",                                         \
   .run = adapters::half_##function,                          \
   .supports = adapters::supports_half_##function,            \
   .scratch_bytes = adapters::half_##function##_scratch,      \
   .accepts = Accept::kAny},
#include "kernels/adapters/half.inc"

#define LT_REFERENCE(op, function) reference_kernel(Op::k##op, "reference." #op, reference::function, -1, nullptr),
#define LT_REFERENCE_IN_PLACE(op, function) \
  reference_kernel(Op::k##op, "reference." #op, reference::function, 0, nullptr),
#define LT_REFERENCE_IN_PLACE_OF_SECOND(op, function) \
  reference_kernel(Op::k##op, "reference." #op, reference::function, 1, nullptr),
#define LT_REFERENCE_WITH_SCRATCH(op, function, scratch) \
  reference_kernel(Op::k##op, "reference." #op, reference::function, -1, reference::scratch),
#include "kernels/reference/list.inc"
};

// By op, best first: the order within an op is that of the lists.
const std::vector<Kernel>& sorted_kernels() {
  static const std::vector<Kernel> sorted = [] {
    std::vector<Kernel> kernels(std::begin(kKernels), std::end(kKernels));
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
