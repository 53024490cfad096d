#include "kernels/reference/reference.h"
#include "kernels/rule_sets.h"

namespace lowtide::reference {

std::span<const Kernel> kernels() {
#define LT_REFERENCE_RULES(op_name, function, operand_rules, ...) \
  {.op = Op::k##op_name,                                          \
   .name = "reference." #op_name,                                 \
   .provider = "reference",                                       \
   .run = function,                                               \
   .rules = operand_rules __VA_OPT__(, .scratch_bytes =) __VA_ARGS__},
  static constexpr Kernel list[] = {
#include "kernels/reference/list.inc"
  };
  return list;
}

}  // namespace lowtide::reference
