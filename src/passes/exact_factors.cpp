#include "passes/exact_factors.h"

#include "base/half.h"
#include "ops/builder.h"
#include "ops/uniform.h"
#include "passes/rewrite.h"

namespace lowtide {

bool exact_factors(Graph& graph) {
  return rewrite_nodes(graph, 1, [&](NodeId id) {
    const Node& node = graph.node(id);
    if ((node.op != Op::kMul && node.op != Op::kDiv) || node.attrs.has("computes")) return false;
    const DType gives = graph.type(node.outputs[0]).dtype;
    if (!is_half(gives)) return false;
    for (size_t i = node.op == Op::kMul ? 0 : 1; i < 2; ++i) {
      const ValueId factor = node.inputs[i];
      const std::optional<double> number = uniform_float(graph, factor);
      if (!number || !graph.type(factor).shape.empty() ||
          rounded_to_half(gives, *number) == static_cast<float>(*number))
        continue;
      Builder b = before(graph, id);
      graph.set_operand(id, i, b.scalar(*number, DType::kF32));
      Attrs& attrs = graph.edit(id).attrs;
      attrs.set("computes", DType::kF32);
      attrs.set("gives", gives);
      return true;
    }
    return false;
  });
}

}  // namespace lowtide
