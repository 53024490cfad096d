#include "kernels/prepared.h"
#include "kernels/reference/reference.h"
#include "kernels/rule_sets.h"

namespace lowtide::reference {

std::span<const Kernel> kernels() {
#define LT_REFERENCE_LINE(op_name, function, operand_rules, scratch, ...) \
  {.op = Op::k##op_name,                                                  \
   .name = "reference." #op_name,                                         \
   .provider = "reference",                                               \
   .run = Prepared<function>::kRun,                                       \
   .prepare = Prepared<function>::kPrepare,                               \
   .state_bytes = Prepared<function>::kStateBytes,                        \
   .state_bytes_each = Prepared<function>::kStateBytesEach,               \
   .rules = operand_rules,                                                \
   .scratch_bytes = scratch},
  static constexpr Kernel list[] = {
#include "kernels/reference/list.inc"
  };
  return list;
}

}  // namespace lowtide::reference
