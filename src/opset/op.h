// The ops as data: one enum and one table derived from ops.def.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace lowtide {

enum class Op : uint16_t {
#define LT_OP(name, category, recompute, min_in, max_in, min_out, max_out, infer, grad) k##name,
#include "opset/ops.def"
};

enum class OpCategory { kView, kPointwise, kReduce, kRow, kGemm, kIndex, kCreate, kRandom, kWindow, kCall, kControl };
enum class RecomputePrice { kCheap, kCostly, kNever };
// Facts of an op that others ask for, so that they name no ops. A bit each.
enum class Trait : uint32_t {
  kCommutative = 1u << 0,           // f(a, b) = f(b, a), bit for bit
  kInvolution = 1u << 1,            // f(f(x)) = x
  kZeroIsNeutral = 1u << 2,         // f(x, 0) = x
  kOneIsNeutral = 1u << 3,          // f(x, 1) = x
  kRoundsFloats = 1u << 4,          // f(x, neutral) = x for integers only
  kBroadcasts = 1u << 5,            // operands broadcast as a pointwise op's do
  kKeepsExpand = 1u << 6,           // pointwise, but its kernels are fast, or right, on operands of one shape only
  kCommutesWithRounding = 1u << 7,  // rounding the operand or the result is the same; views do so too
  kDropsElements = 1u << 8,         // the result has some of x's elements
  kRepeatsElements = 1u << 9,       // the result has x's elements several times
  kCastLevel1 = 1u << 10,           // a cast may cross it from level 1 of cast propagation on, …
  kCastLevel2 = 1u << 11,           // … from level 2 on
  kConvertsDtype = 1u << 12,        // the dtype of the result is an attribute, `to`; values stay
  kFreshBytes = 1u << 13,           // asked for its bytes: two are never one
  kFiller = 1u << 14,               // one number everywhere, from attributes alone
  kBlocksGradient = 1u << 15,       // no gradient passes
  kEffect = 1u << 16,               // does more than its outputs show
  kNorm = 1u << 17,                 // roles in a transformer's layer
  kAttentionScores = 1u << 18,
  kResidual = 1u << 19,
  kLoss = 1u << 20,                     // of logits and labels
  kRematerialisedByDefault = 1u << 21,  // made again in backward where its operands are there anyway
  kImages = 1u << 22,                   // its kernels write images (rank 4) channels-last
  kPaysPerOutput = 1u << 23,            // each output costs as much as the op without it: unread ones are dropped
  kWidensOperands = 1u << 24,           // computes f32 and reads 16 bits as well (LT_CONVERTS)
  kRoundsOperands = 1u << 25,           // computes 16 bits and reads f32 as well, rounding it
  kConvertsResults = 1u << 26,          // writes another dtype than it computes in
  kRematerialisedAlong = 1u << 27       // so too, where an operand is and the others are there, or all are kept
};

// Kernels that the same rates price.
enum class KernelClass : uint8_t {
#define LT_KERNEL_CLASS(name, text) k##name,
#include "opset/kernel_classes.def"
};
std::string_view name(KernelClass kernels);
std::optional<KernelClass> find_kernel_class(std::string_view name);
std::span<const KernelClass> all_kernel_classes();

constexpr Trait operator|(Trait a, Trait b) { return Trait(static_cast<uint32_t>(a) | static_cast<uint32_t>(b)); }

enum class AttrType { kInt, kFloat, kBool, kString, kDType, kInts, kFloats };

struct AttrSchema {
  std::string_view name;
  AttrType type;
  bool required;
};

struct OpInfo {
  Op op;
  std::string_view name;
  OpCategory category;
  RecomputePrice recompute;
  int min_inputs, max_inputs;
  int min_outputs, max_outputs;
  std::span<const AttrSchema> attrs;
  Trait traits;  // all of them
  // What other exports write where they have no such op: op types, each followed by '+'. Empty: the same op.
  std::string_view parts;
  // Operands from this one on are statistics that the op hands on updated; its other outputs need none of them.
  int first_update;
  KernelClass kernels;
};
inline constexpr int kNoUpdate = 1 << 30;

const OpInfo& info(Op op);
inline bool has_trait(Op op, Trait trait) {
  return (static_cast<uint32_t>(info(op).traits) & static_cast<uint32_t>(trait)) != 0;
}
inline std::string_view name(Op op) { return info(op).name; }
std::optional<Op> find_op(std::string_view name);
std::span<const OpInfo> all_ops();

// Whether it has the attributes of LT_CONVERTS.
inline bool may_convert(Op op) {
  return has_trait(op, Trait::kWidensOperands) || has_trait(op, Trait::kRoundsOperands) ||
         has_trait(op, Trait::kConvertsResults);
}
// An operand that is f32 (or holds what it holds) whatever the op computes in, and so is never converted.
inline bool is_statistic(Op op, size_t operand) {
  const bool is_panel = op == Op::kPanelLinearCrossEntropyLossGrad;
  if (op != Op::kLinearCrossEntropyLossGrad && !is_panel) return false;
  return operand == 0 || operand == 3 || (is_panel && operand == 1);
}

inline bool is_view(Op op) { return info(op).category == OpCategory::kView; }
// The ops that the graph's grammar is made of.
inline bool is_yield(Op op) { return op == Op::kYieldOp; }
inline bool is_inspection(Op op) { return op == Op::kInspect; }
inline bool is_gradient_tie(Op op) { return op == Op::kSameGradient; }
// Its result is a size of the graph from there on.
inline bool makes_size(Op op) { return op == Op::kDataSize; }
inline bool owns_body(Op op) { return op == Op::kFusedGroup; }
// Aten and PythonOp carry a target and free attributes.
inline bool is_aten_call(Op op) { return op == Op::kAten; }
inline bool is_custom_function(Op op) { return op == Op::kPythonOp; }
inline bool is_call(Op op) { return is_aten_call(op) || is_custom_function(op); }
inline bool is_call_gradient(Op op) { return op == Op::kCallGrad; }
// All processes of a group run them in the same order.
inline bool is_gather(Op op) { return op == Op::kAllGather; }
inline bool is_redistribution(Op op) { return op == Op::kRedistribute; }
inline bool is_collective(Op op) { return is_gather(op) || op == Op::kReduceScatter || is_redistribution(op); }

}  // namespace lowtide
