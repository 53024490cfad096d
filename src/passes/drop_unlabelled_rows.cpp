#include "passes/drop_unlabelled_rows.h"

#include <algorithm>
#include <string>

#include "ir/data_sizes.h"
#include "passes/upstream_rows.h"

namespace lowtide {

namespace {

// The input whose elements these labels are, where the others that came to them are ignored; or none.
ValueId input_of(const Graph& graph, ValueId labels, const Dim& ignored) {
  for (ValueId value = labels;;) {
    const NodeId id = graph.value(value).producer;
    if (!id) return graph.type(value).dtype == DType::kI64 ? value : ValueId{};
    const Node& node = graph.node(id);
    const bool shows_elements = is_view(node.op) && !has_trait(node.op, Trait::kRepeatsElements);
    const bool pads = node.op == Op::kPad && node.attrs.s("mode") == "constant" && ignored.is_constant() &&
                      node.attrs.f("value") == static_cast<double>(ignored.constant());
    if (!shows_elements && !pads && node.op != Op::kCopy) return {};
    value = node.inputs[0];
  }
}

bool rewrite_loss(Graph& graph, NodeId id, bool through_attention) {
  const Node& loss = graph.node(id);
  if (loss.op != Op::kSoftmaxCrossEntropyLoss || loss.attrs.s("reduction") == "none") return false;
  if (loss.outputs[1] && is_read(graph, loss.outputs[1])) return false;
  const ValueId logits = loss.inputs[0], labels = loss.inputs[1];
  if (graph.type(logits).shape.size() != 2) return false;
  const NodeId maker = graph.value(labels).producer;
  if (maker && graph.node(maker).op == Op::kCompress) return false;  // it has been here
  const UpstreamRows rows(graph, id, logits, through_attention);
  if (!rows.has_product()) return false;

  Builder b = before(graph, id);
  const Dim &all = graph.type(labels).shape[0], ignored = loss.attrs.dim("ignore_index");
  const ValueId is_labelled = b.op(Op::kNotEqual, {labels, b.scalar_dim(ignored, DType::kI64)});
  const std::string symbol = fresh_size(graph, "labelled");
  std::vector<ValueId> counted{b.op(Op::kCountTrue, {is_labelled})};
  Attrs attrs{{"symbol", symbol}, {"low", Dim(0)}, {"high", all}};
  if (const ValueId input = input_of(graph, labels, ignored)) {
    counted.push_back(input);
    attrs.set("without", ignored);
  }
  b.op(Op::kDataSize, counted, attrs);
  const Dim count = Dim::symbol(symbol);
  const ValueId chosen_labels = b.op(Op::kCompress, {labels, is_labelled}, {{"size", count}});
  std::vector<ValueId> operands = loss.inputs;
  operands[0] = rows.write(graph, is_labelled, count);
  operands[1] = chosen_labels;
  b.set_origin(loss.origin);
  graph.replace_uses(loss.outputs[0],
                     b.named(graph.value(loss.outputs[0]).name).op(Op::kSoftmaxCrossEntropyLoss, operands, loss.attrs));
  return true;
}

}  // namespace

bool drop_unlabelled_rows(Graph& graph, const PassOptions& options) {
  if (!options.label_sparsity) return false;
  bool changed = false;
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order) changed = rewrite_loss(graph, id, options.padding_sparsity) || changed;
  return changed;
}

}  // namespace lowtide
