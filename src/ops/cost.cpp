// What a node computes and moves, as symbolic sizes.
#include "base/check.h"
#include "ops/rule.h"

namespace lowtide {

static Dim bytes_of(const Graph& graph, ValueId value) {
  const TensorType& type = graph.type(value);
  return numel(type.shape) * Dim(size_bytes(type.dtype));
}

static Dim moved_bytes(const Graph& graph, const Node& node) {
  Dim total = 0;
  for (ValueId input : node.inputs)
    if (input) total = total + bytes_of(graph, input);
  for (ValueId output : node.outputs)
    if (output) total = total + bytes_of(graph, output);
  return total;
}

static Dim numel_of(const Graph& graph, ValueId value) { return value ? numel(graph.type(value).shape) : Dim(0); }

// The elements of the largest operand or output, as far as sizes can be compared.
static Dim largest_numel(const Graph& graph, const Node& node) {
  Dim largest = 0;
  for (const std::vector<ValueId>* values : {&node.inputs, &node.outputs})
    for (ValueId value : *values) {
      if (!value) continue;
      const Dim count = numel(graph.type(value).shape);
      if (range_of(count - largest, graph.ranges()).low >= 0) largest = count;
    }
  return largest;
}

// Multiplications and additions of q k^T and p v: 2*B*H*S*T*(E + Ev).
static Dim attention_flops(const Graph& graph, ValueId q, ValueId k, ValueId v, bool is_causal) {
  const Shape &qs = graph.type(q).shape, &ks = graph.type(k).shape, &vs = graph.type(v).shape;
  const Dim all = Dim(2) * qs[0] * qs[1] * qs[2] * ks[2] * (qs[3] + vs[3]);
  return is_causal ? floordiv(all, 2) : all;
}

static Dim gemm_flops(const Graph& graph, const Node& node) {
  const bool causal = node.attrs.b("is_causal", false);
  if (node.op == Op::kAttention) return attention_flops(graph, node.inputs[0], node.inputs[1], node.inputs[2], causal);
  // Five products against two: the scores again, dv, dp, dq, dk.
  if (node.op == Op::kAttentionGrad)
    return floordiv(Dim(5) * attention_flops(graph, node.inputs[1], node.inputs[2], node.inputs[3], causal), 2);
  const Shape& a = graph.type(node.inputs[0]).shape;
  const Dim& inner = a[a.size() - (node.attrs.b("transA", false) ? 2 : 1)];
  return Dim(2) * numel_of(graph, node.outputs[0]) * inner;
}

// A convolution does 2 flops per output element and weight of its filter; each gradient as many.
static Dim window_flops(const Graph& graph, const Node& node) {
  if (node.op == Op::kConv || node.op == Op::kConvGrad) {
    const bool forward = node.op == Op::kConv;
    const Shape& w = graph.type(node.inputs[forward ? 1 : 2]).shape;
    const Dim y = numel_of(graph, forward ? node.outputs[0] : node.inputs[0]);
    const Dim one = Dim(2) * y * floordiv(numel(w), w[0]);
    if (forward) return one;
    return Dim((node.outputs[0] ? 1 : 0) + (node.outputs[1] ? 1 : 0)) * one + (node.outputs[2] ? y : Dim(0));
  }
  Dim window = 1;
  if (node.attrs.has("kernel_shape")) window = numel(node.attrs.ints("kernel_shape"));
  return window * numel_of(graph, node.op == Op::kAveragePoolGrad ? node.inputs[0] : node.outputs[0]);
}

Cost cost(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const Dim bytes = moved_bytes(graph, node);
  switch (info(node.op).category) {
    case OpCategory::kView:
    case OpCategory::kControl: break;
    case OpCategory::kPointwise:
    case OpCategory::kReduce:
    case OpCategory::kRandom: return {largest_numel(graph, node), bytes};
    // Two passes over the rows or so: statistics, then the result.
    case OpCategory::kRow: return {Dim(5) * largest_numel(graph, node), bytes};
    case OpCategory::kGemm: return {gemm_flops(graph, node), bytes};
    case OpCategory::kWindow: return {window_flops(graph, node), bytes};
    case OpCategory::kIndex:
    case OpCategory::kCreate: return {0, bytes};
    case OpCategory::kCall: return {largest_numel(graph, node), bytes};
  }
  if (!node.body) return {0, 0};
  // A group computes what its body does, and moves only its own operands and outputs.
  Dim flops = 0;
  for (NodeId inner : node.body->order()) flops = flops + cost(*node.body, inner).flops;
  return {flops, bytes};
}

}  // namespace lowtide
