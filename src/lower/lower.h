// A captured graph (aten:: nodes as torch.export gave them) → a functional graph of the ops in ops.def.
//
// The captured graph: every node is Op::kAten, Node::target = "aten::add.Tensor" (name.overload), operands = tensor
// arguments in schema order, attribute `operands` = the schema argument of each operand (list arguments repeat their
// name; an absent element of an optional tensor list is an invalid ValueId), every other argument that is not None
// under its schema name, defaults filled in. Symbolic ints are Dims. dtype arguments are DType; layout, device,
// memory_format, pin_memory, generator are left out, but for `memory_format` = "channels_last" (String). A tensor
// constant is a graph input of kind kConstant. Output types are the exporter's (meta['val']).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace lowtide {

struct LoweringReport {
  int lowered = 0;                     // captured nodes that became ops of ours (or vanished)
  std::vector<std::string> fallbacks;  // targets that stay Aten or PythonOp, one entry per node, with their origin:
                                       // "aten::histc.default (model.moe, m.py:3)"
  std::vector<std::string> bugs;       // errors of lowerings, one for each target: its calls stay Aten
  std::vector<ValueId> values;         // by captured value: the lowered one that stands for it, if any
};

// In-place ops and mutation through views become new values and scatters; a mutated input or buffer becomes an output
// of kind kUpdate. aten::batch_norm with training statistics writes its buffers although its schema does not say so.
// Requires: a captured graph. Leaves: a captured graph without mutation (targets lose their trailing underscore),
// outputs re-pointed. Mutation through a view that has no scatter (as_strided, …) is Error(kUnsupported) naming the
// user's line.
void functionalise(Graph& graph);

// One function per ATen op; an op without lowering stays Aten. Requires: functionalise. Promotion, wrapped scalars and
// 0-d tensors are decided here from the exporter's types: the result of each lowered node has exactly the dtype and
// shape that the exporter gave. Where autocast was around the call, node output types say so and casts become nodes.
// Ops whose output sizes depend on data are Error(kUnsupported) naming op and line.
// `broken`, for tests: a target whose lowering fails with an InternalError.
Graph lower(const Graph& captured, LoweringReport* report = nullptr, std::string_view broken = {});

// The ATen targets that have a lowering, sorted.
std::vector<std::string> lowered_targets();

// The names ("select" of "aten::select.int") of views whose memory functionalise follows: a write of one shows in the
// other, or is Error(kUnsupported).
std::vector<std::string> known_views();

}  // namespace lowtide
