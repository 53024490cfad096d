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
};

const OpInfo& info(Op op);
inline std::string_view name(Op op) { return info(op).name; }
std::optional<Op> find_op(std::string_view name);
std::span<const OpInfo> all_ops();

inline bool is_view(Op op) { return info(op).category == OpCategory::kView; }
// Aten and PythonOp carry a target and free attributes.
inline bool is_call(Op op) { return op == Op::kAten || op == Op::kPythonOp; }

}  // namespace lowtide
