#include "lower/known_functions.h"

#include <utility>

namespace lowtide {

// x * 0.5 * (1 + tanh(0.79788456 * x * (1 + 0.044715 * x²))) with its exact derivative. The constant has the eight
// digits that f32 can tell; in f64 it is another function than ours.
static ValueId bloom_gelu(Builder& b, std::span<const ValueId> operands) {
  if (operands.size() != 1 || b.dtype(operands[0]) == DType::kF64) return {};
  return b.op(Op::kFastGelu, {operands[0]});
}

static constexpr std::pair<std::string_view, KnownFunction> kKnownFunctions[] = {
    {"transformers.models.bloom.modeling_bloom.GeLUFunction", bloom_gelu},
};

KnownFunction find_known_function(std::string_view target) {
  for (const auto& [name, function] : kKnownFunctions)
    if (name == target) return function;
  return nullptr;
}

}  // namespace lowtide
