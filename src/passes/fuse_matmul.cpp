#include "passes/fuse_matmul.h"

#include <cmath>

#include "passes/pattern.h"

namespace lowtide {

namespace {

bool is_matmul(Op op) { return op == Op::kMatMul || op == Op::kFusedMatMul; }

// What is transposed in the last two dims alone to give `value`, or none.
ValueId transposed(const Graph& graph, ValueId value) {
  const NodeId id = producer(graph, value, Op::kTranspose);
  if (!id) return {};
  const std::vector<int64_t> perm = graph.node(id).attrs.is("perm");
  const size_t rank = perm.size();
  for (size_t i = 0; i < rank; ++i) {
    const size_t expected = rank >= 2 && i + 2 == rank ? rank - 1 : rank >= 2 && i + 1 == rank ? rank - 2 : i;
    if (perm[i] != static_cast<int64_t>(expected)) return {};
  }
  return operand(graph, id, 0);
}

void make_fused(Graph& graph, NodeId id) {
  Node& node = graph.edit(id);
  if (node.op != Op::kMatMul) return;
  node.op = Op::kFusedMatMul;
  node.attrs = {{"transA", false}, {"transB", false}, {"alpha", 1.0}};
}

// MatMul of a transposed operand → FusedMatMul, Gemm → Gemm with the flag
bool take_transposes(Graph& graph, NodeId id) {
  bool changed = false;
  for (size_t i = 0; i < 2; ++i) {
    const ValueId x = transposed(graph, operand(graph, id, i));
    if (!x) continue;
    make_fused(graph, id);
    const char* flag = i == 0 ? "transA" : "transB";
    Attrs& attrs = graph.edit(id).attrs;
    attrs.set(flag, !attrs.b(flag));
    graph.set_operand(id, i, x);
    changed = true;
  }
  return changed;
}

// Mul or Div of a product by a constant → alpha
bool take_factor(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  for (size_t i = 0; i < (node.op == Op::kMul ? 2u : 1u); ++i) {
    const NodeId product = producer(graph, node.inputs[i], {Op::kMatMul, Op::kFusedMatMul});
    const std::optional<double> factor = uniform_float(graph, node.inputs[1 - i]);
    if (!product || !factor || *factor == 0 || !std::isfinite(*factor)) continue;
    if (graph.type(node.outputs[0]) != graph.type(node.inputs[i])) continue;
    Pattern pattern(graph);
    pattern.add(product);
    pattern.add(id);
    if (!pattern.is_closed(id)) continue;
    make_fused(graph, product);
    Builder b = before(graph, id);
    b.set_origin(pattern.origin(id));
    Attrs attrs = graph.node(product).attrs;
    attrs.set("alpha", node.op == Op::kMul ? attrs.f("alpha") * *factor : attrs.f("alpha") / *factor);
    const std::vector<ValueId> operands = graph.node(product).inputs;
    graph.replace_uses(node.outputs[0], b.op(Op::kFusedMatMul, operands, std::move(attrs)));
    return true;
  }
  return false;
}

}  // namespace

bool fuse_matmul(Graph& graph) {
  return rewrite_nodes(graph, 2, [&](NodeId id) {
    const Op op = graph.node(id).op;
    if (is_matmul(op) || op == Op::kGemm) return take_transposes(graph, id);
    return (op == Op::kMul || op == Op::kDiv) && is_read(graph, graph.node(id).outputs[0]) && take_factor(graph, id);
  });
}

}  // namespace lowtide
