// The text form: printed and parsed by one grammar (docs/ir.md).
//
//   graph @mlp(%x: f32[batch, 4] input, %w: f32[4, 2] param, %c: f32[2] param frozen, %s: f32[2] buffer) where batch in
//   [2, 1024] {
//     %y: f32[batch, 2] = Gemm(transA=false, transB=false, alpha=1.0, beta=1.0) %x, %w, %c  // fc  model.py:41
//     %dy: f32[batch, 2] = YieldOp(grads=[0]) %y
//     %v: f32[batch, 2], _ = Sort(axis=1, descending=true) %y
//     %z: i64[batch] = aten::argmax.default(dim=1, operands=["self"]) %y
//     return %y output, %s1 update %s, %dw gradient %w
//   }
#pragma once

#include <string>

#include "ir/graph.h"

namespace lowtide {

std::string print(const Graph& graph);
// One node as in print(), for messages.
std::string print_node(const Graph& graph, NodeId node);
// "MatMul (model.fc2, train.py:41)": how messages name a node.
std::string describe(const Graph& graph, NodeId node);

}  // namespace lowtide
