#include "kernels/packed_heads.h"
#include "kernels/prepared.h"
#include "kernels/reference/converted.h"
#include "kernels/reference/reference.h"
#include "kernels/rule_sets.h"

namespace lowtide::reference {

namespace {

constexpr bool converts(Op op) {
  switch (op) {
#define LT_OP(...)
#define LT_CONVERTS(name) \
  case Op::k##name: return true;
#include "opset/ops.def"
    default: return false;
  }
}

template <Op op, class Function, ScratchFunction scratch, bool kConverts = converts(op)>
struct Line : Function {
  static constexpr ScratchFunction kScratch = scratch;
};
template <class Function, ScratchFunction scratch>
struct Line<Op::kAttentionGrad, Function, scratch, false> : Unpacking<Function> {
  static constexpr ScratchFunction kScratch = unpacking_scratch<scratch>;
};
template <Op op, class Function, ScratchFunction scratch>
struct Line<op, Function, scratch, true> : Converted<op, Function, scratch> {};

}  // namespace

std::span<const Kernel> kernels() {
#define LT_REFERENCE_FIELD(field, op_name, function, scratch) Line<Op::k##op_name, Prepared<function>, scratch>::field
#define LT_REFERENCE_LINE(op_name, function, operand_rules, scratch, ...)               \
  {.op = Op::k##op_name,                                                                \
   .name = "reference." #op_name,                                                       \
   .provider = "reference",                                                             \
   .run = LT_REFERENCE_FIELD(kRun, op_name, function, scratch),                         \
   .prepare = LT_REFERENCE_FIELD(kPrepare, op_name, function, scratch),                 \
   .state_bytes = LT_REFERENCE_FIELD(kStateBytes, op_name, function, scratch),          \
   .state_bytes_each = LT_REFERENCE_FIELD(kStateBytesEach, op_name, function, scratch), \
   .rules = operand_rules,                                                              \
   .scratch_bytes = LT_REFERENCE_FIELD(kScratch, op_name, function, scratch)},
  static constexpr Kernel list[] = {
#include "kernels/reference/list.inc"
  };
  return list;
}

}  // namespace lowtide::reference
