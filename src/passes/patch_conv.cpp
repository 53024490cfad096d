#include "passes/patch_conv.h"

#include <algorithm>

#include "passes/rewrite.h"

namespace lowtide {

static bool cuts_patches(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.op != Op::kConv || node.attrs.i("group") != 1) return false;
  const Shape &x = graph.type(node.inputs[0]).shape, &w = graph.type(node.inputs[1]).shape;
  if (x.size() != 4) return false;
  const std::vector<int64_t> strides = node.attrs.is("strides"), pads = node.attrs.is("pads"),
                             dilations = node.attrs.is("dilations");
  if (std::any_of(pads.begin(), pads.end(), [](int64_t pad) { return pad != 0; })) return false;
  for (size_t d = 0; d < 2; ++d) {
    if (dilations[d] != 1 || !w[2 + d].is(strides[d]) || !x[2 + d].is_constant()) return false;
    if (x[2 + d].constant() % strides[d] != 0) return false;
  }
  ValueId pixels = base_of_views(graph, node.inputs[0]);
  // Autocast's.
  if (const NodeId cast = graph.value(pixels).producer; cast && graph.node(cast).op == Op::kCast)
    pixels = base_of_views(graph, graph.node(cast).inputs[0]);
  const GraphInput* image = graph.find_input(pixels);
  return image != nullptr && image->kind == InputKind::kInput;
}

static bool rewrite_conv(Graph& graph, NodeId id) {
  if (!cuts_patches(graph, id) || !is_read(graph, graph.node(id).outputs[0])) return false;
  const Node& node = graph.node(id);
  const ValueId x = node.inputs[0], w = node.inputs[1], y = node.outputs[0];
  const Shape image = graph.type(x).shape, filter = graph.type(w).shape;
  const Dim n = image[0], c = image[1], m = filter[0], kh = filter[2], kw = filter[3];
  const Dim rows = image[2].constant() / kh.constant(), columns = image[3].constant() / kw.constant();
  const bool has_bias = node.inputs.size() > 2 && node.inputs[2];
  Builder b = before(graph, id);
  const ValueId cut = b.transpose(b.reshape(x, {n, c, rows, kh, columns, kw}), {0, 2, 4, 1, 3, 5});
  const ValueId patches = b.reshape(cut, {n * rows * columns, c * kh * kw});
  std::vector<ValueId> operands = {patches, b.reshape(w, {m, c * kh * kw})};
  if (has_bias) operands.push_back(graph.node(id).inputs[2]);
  const ValueId product =
      b.named(graph.value(y).name)
          .op(Op::kGemm, std::move(operands), {{"transA", false}, {"transB", true}, {"alpha", 1.0}, {"beta", 1.0}});
  graph.replace_uses(y, b.transpose(b.reshape(product, {n, rows, columns, m}), {0, 3, 1, 2}));
  return true;
}

bool patch_conv(Graph& graph) {
  return rewrite_nodes(graph, 1, [&](NodeId id) { return rewrite_conv(graph, id); });
}

}  // namespace lowtide
