#include "lower/dtypes.h"

#include <algorithm>
#include <map>
#include <vector>

#include "base/check.h"
#include "lower/call.h"

namespace lowtide {

namespace {

enum class Rule { kSame, kAutocast, kNorm, kFloat, kIndex, kLong, kNumber };

struct Row {
  std::string_view target;
  Rule rule;
  std::string_view operands;
};

constexpr Row kRows[] = {
#define LT_DTYPES(target, rule, operands) {"aten::" target, Rule::k##rule, operands},
#include "lower/dtypes.def"
};

struct Operand {
  std::string_view name;
  DType dtype;
};

// The named operands that the call has, in this order.
std::vector<Operand> operands_of(const Graph& captured, const Node& call, std::string_view names) {
  std::vector<Operand> found;
  const std::vector<std::string>& operands = operand_names(call);
  for (size_t at = 0; at < names.size();) {
    const size_t end = std::min(names.find(' ', at), names.size());
    const std::string_view name = names.substr(at, end - at);
    at = end + 1;
    for (size_t i = 0; i < operands.size(); ++i)
      if (operands[i] == name && call.inputs[i]) found.push_back({name, captured.type(call.inputs[i]).dtype});
  }
  return found;
}

bool is_index(DType dtype) { return dtype == DType::kI64 || dtype == DType::kI32; }

// Autocast takes every floating tensor but f64.
DType after_autocast(const Node& call, DType dtype) {
  return is_float(dtype) && dtype != DType::kF64 && call.attrs.has("autocast") ? call.attrs.t("autocast") : dtype;
}

void check_same(const Node& call, const std::vector<Operand>& operands) {
  for (const Operand& operand : operands)
    LT_USER_CHECK(ErrorKind::kUnsupported, operand.dtype == operands[0].dtype, describe_call(call),
                  ": PyTorch expects operands of one dtype; `", operands[0].name, "` is ", name(operands[0].dtype),
                  ", `", operand.name, "` is ", name(operand.dtype));
}

void check_each(const Node& call, const std::vector<Operand>& operands, bool (*fits)(DType), std::string_view word) {
  for (const Operand& operand : operands)
    LT_USER_CHECK(ErrorKind::kUnsupported, fits(operand.dtype), describe_call(call), ": PyTorch expects `",
                  operand.name, "` to be ", word, ", it is ", name(operand.dtype));
}

void check_norm(const Node& call, std::vector<Operand> operands) {
  const Operand input = operands[0];
  const bool is_half = input.dtype == DType::kBF16 || input.dtype == DType::kF16;
  // Parameters in f32 beside an input of half precision agree among themselves.
  if (operands.size() > 1 && is_half && operands[1].dtype == DType::kF32) operands.erase(operands.begin());
  check_same(call, operands);
}

void check(const Node& call, Rule rule, std::vector<Operand> operands) {
  if (operands.empty()) return;
  switch (rule) {
    case Rule::kSame: return check_same(call, operands);
    case Rule::kAutocast:
      for (Operand& operand : operands) operand.dtype = after_autocast(call, operand.dtype);
      return check_same(call, operands);
    case Rule::kNorm: return check_norm(call, std::move(operands));
    case Rule::kFloat:
      if (!call.attrs.has("dtype")) check_each(call, operands, is_float, "floating");
      return;
    case Rule::kIndex: return check_each(call, operands, is_index, "i64 or i32");
    case Rule::kLong: return check_each(call, operands, [](DType dtype) { return dtype == DType::kI64; }, "i64");
    case Rule::kNumber:
      return check_each(call, operands, [](DType dtype) { return dtype != DType::kBool; }, "a number");
  }
}

}  // namespace

void check_operand_dtypes(const Graph& captured, const Node& call) {
  static const std::multimap<std::string_view, const Row*> by_target = [] {
    std::multimap<std::string_view, const Row*> rows;
    for (const Row& row : kRows) rows.emplace(row.target, &row);
    return rows;
  }();
  const auto [first, last] = by_target.equal_range(call.target);
  for (auto at = first; at != last; ++at)
    check(call, at->second->rule, operands_of(captured, call, at->second->operands));
}

}  // namespace lowtide
