#include "opset/op.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"

namespace lowtide {

namespace {

struct FlatAttr {
  Op op;
  AttrSchema schema;
};

constexpr FlatAttr kAttrs[] = {
#define LT_OP(...)
#define LT_ATTR(op, attribute, type) {Op::k##op, {#attribute, AttrType::k##type, true}},
#define LT_ATTR_OPT(op, attribute, type) {Op::k##op, {#attribute, AttrType::k##type, false}},
#include "opset/ops.def"
};

constexpr size_t kAttrCount = std::size(kAttrs);

// The schemas alone, so that each op's are one span: ops.def lists an op's attributes right after it.
constexpr auto kSchemas = [] {
  std::array<AttrSchema, kAttrCount> schemas{};
  for (size_t i = 0; i < kAttrCount; ++i) schemas[i] = kAttrs[i].schema;
  return schemas;
}();

constexpr std::span<const AttrSchema> attrs_of(Op op) {
  size_t begin = 0;
  while (begin < kAttrCount && kAttrs[begin].op != op) ++begin;
  size_t end = begin;
  while (end < kAttrCount && kAttrs[end].op == op) ++end;
  return std::span<const AttrSchema>(kSchemas).subspan(begin, end - begin);
}

constexpr Trait traits_of(Op op) {
  using enum Trait;
  switch (op) {
#define LT_OP(...)
#define LT_TRAITS(name, traits) \
  case Op::k##name: return traits;
#include "opset/ops.def"
    default: return Trait{};
  }
}

constexpr std::string_view parts_of(Op op) {
  switch (op) {
#define LT_OP(...)
#define LT_PARTS(name, parts) \
  case Op::k##name: return parts;
#include "opset/ops.def"
    default: return {};
  }
}

constexpr int first_update_of(Op op) {
  switch (op) {
#define LT_OP(...)
#define LT_UPDATES(name, operand) \
  case Op::k##name: return operand;
#include "opset/ops.def"
    default: return kNoUpdate;
  }
}

constexpr KernelClass kernels_of(OpCategory category) {
  switch (category) {
    case OpCategory::kView:
    case OpCategory::kControl: return KernelClass::kFree;
    case OpCategory::kPointwise: return KernelClass::kPointwise;
    case OpCategory::kReduce: return KernelClass::kReduce;
    case OpCategory::kRow: return KernelClass::kNorm;
    case OpCategory::kGemm: return KernelClass::kMatMul;
    case OpCategory::kIndex: return KernelClass::kCopy;
    case OpCategory::kCreate: return KernelClass::kFill;
    case OpCategory::kRandom: return KernelClass::kRandom;
    case OpCategory::kWindow: return KernelClass::kPool;
    case OpCategory::kCall: return KernelClass::kCall;
  }
  return KernelClass::kFree;
}

constexpr KernelClass kernels_of(Op op, OpCategory category) {
  switch (op) {
#define LT_OP(...)
#define LT_KERNELS(name, kernel_class) \
  case Op::k##name: return KernelClass::k##kernel_class;
#include "opset/ops.def"
    default: return kernels_of(category);
  }
}

constexpr KernelClass kKernelClasses[] = {
#define LT_KERNEL_CLASS(name, text) KernelClass::k##name,
#include "opset/kernel_classes.def"
};
constexpr std::string_view kKernelClassNames[] = {
#define LT_KERNEL_CLASS(name, text) text,
#include "opset/kernel_classes.def"
};

constexpr OpInfo kOps[] = {
#define LT_OP(name, category, recompute, min_in, max_in, min_out, max_out, infer, grad) \
  {Op::k##name,                                                                         \
   #name,                                                                               \
   OpCategory::k##category,                                                             \
   RecomputePrice::k##recompute,                                                        \
   min_in,                                                                              \
   max_in,                                                                              \
   min_out,                                                                             \
   max_out,                                                                             \
   attrs_of(Op::k##name),                                                               \
   traits_of(Op::k##name),                                                              \
   parts_of(Op::k##name),                                                               \
   first_update_of(Op::k##name),                                                        \
   kernels_of(Op::k##name, OpCategory::k##category)},
#include "opset/ops.def"
};

}  // namespace

const OpInfo& info(Op op) {
  LT_CHECK(static_cast<size_t>(op) < std::size(kOps), "no such op: ", static_cast<int>(op));
  return kOps[static_cast<size_t>(op)];
}

std::optional<Op> find_op(std::string_view name) {
  static const std::vector<const OpInfo*> sorted = [] {
    std::vector<const OpInfo*> ops;
    for (const OpInfo& op : kOps) ops.push_back(&op);
    std::sort(ops.begin(), ops.end(), [](const OpInfo* a, const OpInfo* b) { return a->name < b->name; });
    return ops;
  }();
  auto at = std::lower_bound(sorted.begin(), sorted.end(), name,
                             [](const OpInfo* op, std::string_view key) { return op->name < key; });
  if (at == sorted.end() || (*at)->name != name) return std::nullopt;
  return (*at)->op;
}

std::string_view name(KernelClass kernels) { return kKernelClassNames[static_cast<size_t>(kernels)]; }

std::optional<KernelClass> find_kernel_class(std::string_view name) {
  const auto at = std::find(std::begin(kKernelClassNames), std::end(kKernelClassNames), name);
  if (at == std::end(kKernelClassNames)) return std::nullopt;
  return kKernelClasses[at - std::begin(kKernelClassNames)];
}

std::span<const KernelClass> all_kernel_classes() { return kKernelClasses; }

std::span<const OpInfo> all_ops() { return kOps; }

}  // namespace lowtide
