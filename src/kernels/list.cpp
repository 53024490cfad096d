#include "kernels/adapters/list.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/reference/reference.h"
#include "kernels/rule_sets.h"

namespace lowtide {

namespace {

// Operands that advance together: the output lies as the inputs do and may take the place of the first, or of either.
constexpr OperandRules kPointwise = every_input(Accept::kAny, {.layout = OutputLayout::kFollowsInput, .takes = 0});
constexpr OperandRules kPointwisePair =
    every_input(Accept::kAny, {.layout = OutputLayout::kFollowsInput, .takes = 0, .else_takes = 1});
constexpr OperandRules kPointwiseSum = every_input(
    Accept::kAny, {.layout = OutputLayout::kFollowsInput, .takes = 0, .else_takes = 1, .is_sum_of_inputs = true});
constexpr OperandRules kComparison = every_input(Accept::kAny, {.layout = OutputLayout::kFollowsInput});
constexpr OperandRules kWhere = every_input(Accept::kAny, {.takes = 1, .else_takes = 2});
constexpr OperandRules kRotary = {.inputs = {Accept::kInnerDense, Accept::kAny, Accept::kAny},
                                  .outputs = {{{.takes = 0}}}};
constexpr OperandRules kBiasDropout = every_input(Accept::kRowMajor, {.takes = 0, .else_takes = 2});
constexpr OperandRules kBiasSoftmax = {.inputs = {Accept::kRowMajor, Accept::kAny}, .outputs = {{{.takes = 0}}}};
constexpr OperandRules kDenseInPlace = every_input(Accept::kDense, {.layout = OutputLayout::kFollowsInput, .takes = 0});
constexpr OperandRules kOntoThird = every_input(Accept::kRowMajor, {.takes = 2});
constexpr OperandRules kAttention =
    with_output_layout({.inputs = {Accept::kInnerDense, Accept::kInnerDense, Accept::kInnerDense, Accept::kAny}},
                       OutputLayout::kHeadsLast);
constexpr OperandRules kAttentionGrad =
    with_output_layout({.inputs = {Accept::kInnerDense, Accept::kInnerDense, Accept::kInnerDense, Accept::kInnerDense,
                                   Accept::kInnerDense, Accept::kRowMajor, Accept::kAny}},
                       OutputLayout::kHeadsLast);
constexpr OperandRules kConvolution =
    with_output_layout({.inputs = {Accept::kChannelsLast, Accept::kAny, Accept::kAny}}, OutputLayout::kChannelsLast);
constexpr OperandRules kConvolutionGrad = with_output_layout(
    {.inputs = {Accept::kChannelsLast, Accept::kChannelsLast, Accept::kAny}}, OutputLayout::kFollowsInput);

constexpr Kernel reference_kernel(Op op, const char* name, KernelFunction run, const OperandRules& rules,
                                  int64_t (*scratch)(const KernelCall&) = nullptr) {
  return {op, name, "reference", run, nullptr, scratch, rules};
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

#define LT_HALF(op_name, function, f32_supports, f32_scratch, operand_rules) \
  {.op = Op::k##op_name,                                                     \
   .name = "cpu." #op_name ".half",                                          \
   .provider = "cpu",                                                        \
   .run = adapters::half_##function,                                         \
   .supports = adapters::supports_half_##function,                           \
   .scratch_bytes = adapters::half_##function##_scratch,                     \
   .rules = operand_rules},
#include "kernels/adapters/half.inc"

#define LT_REFERENCE_RULES(op, function, rules, ...) \
  reference_kernel(Op::k##op, "reference." #op, reference::function, rules __VA_OPT__(, reference::) __VA_ARGS__),
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
