// The lines of a room's list.inc, best first within an op. The room's source defines the functions, then the list:
//   std::span<const Kernel> norms_kernels() {
//     static constexpr Kernel kernels[] = {
//   #include "kernels/cpu/norms/list.inc"
//     };
//     return kernels;
//   }
// LT_KERNEL(Op, function, its `supports` (nullptr: takes all), rules of its operands, further fields of Kernel…)
// LT_HALF(Op, function, `supports` of f32, scratch of f32 or nullptr, rules): the f32 function for bf16 and f16.
#pragma once

#include "kernels/cpu/half.h"
#include "kernels/prepared.h"
#include "kernels/rule_sets.h"

// `functions`: a Prepared, or what has its members.
#define LT_KERNEL_FIELDS(op_name, kernel_name, provider_name, functions, supports_function, operand_rules, ...) \
  {.op = Op::k##op_name,                                                                                        \
   .name = kernel_name,                                                                                         \
   .provider = provider_name,                                                                                   \
   .run = functions::kRun,                                                                                      \
   .prepare = functions::kPrepare,                                                                              \
   .state_bytes = functions::kStateBytes,                                                                       \
   .state_bytes_each = functions::kStateBytesEach,                                                              \
   .supports = supports_function,                                                                               \
   .rules = operand_rules __VA_OPT__(, ) __VA_ARGS__},
#define LT_KERNEL_LINE(op, name, provider, function, ...) \
  LT_KERNEL_FIELDS(op, name, provider, Prepared<function>, __VA_ARGS__)
#define LT_KERNEL(op, ...) LT_KERNEL_LINE(op, "cpu." #op, "cpu", __VA_ARGS__)
#define LT_KERNEL_NAMED(op, name, ...) LT_KERNEL_LINE(op, name, "cpu", __VA_ARGS__)
#define LT_LIBRARY_KERNEL(provider, op, ...) LT_KERNEL_LINE(op, provider "." #op, provider, __VA_ARGS__)
#define LT_HALF(op, function, f32_supports, f32_scratch, rules)                                                 \
  LT_KERNEL_FIELDS(op, "cpu." #op ".half", "cpu", Half<Prepared<function>>, half_supports<f32_supports>, rules, \
                   .scratch_bytes = half_scratch<f32_scratch>)
