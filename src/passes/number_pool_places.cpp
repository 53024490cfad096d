#include "passes/number_pool_places.h"

#include <algorithm>

#include "passes/rewrite.h"

namespace lowtide {

static constexpr int64_t kMostPlaces = 256;

static bool has_bytes_for_places(const Attrs& attrs) {
  const std::vector<int64_t> kernel = attrs.is("kernel_shape"), pads = attrs.is("pads");
  const std::vector<int64_t> dilations = attrs.is("dilations");
  if (kernel.size() != 2 || attrs.b("offsets", false)) return false;
  for (size_t i = 0; i < 2; ++i)
    if (kernel[i] > kMostPlaces || dilations[i] != 1 || pads[i] >= kernel[i] || pads[2 + i] >= kernel[i]) return false;
  return kernel[0] * kernel[1] <= kMostPlaces;
}

static bool rewrite_pool(Graph& graph, NodeId id) {
  const Node& pool = graph.node(id);
  if (pool.op != Op::kMaxPool || !pool.outputs[0] || !pool.outputs[1] || !has_bytes_for_places(pool.attrs))
    return false;
  const ValueId indices = pool.outputs[1];
  const std::vector<NodeId> readers = graph.value(indices).users;
  const auto is_gradient = [&](NodeId each) { return graph.node(each).op == Op::kMaxPoolGrad; };
  if (readers.empty() || graph.is_output(indices) || !std::all_of(readers.begin(), readers.end(), is_gradient))
    return false;
  const Attrs window = pool.attrs;
  Attrs attrs = window;
  attrs.set("offsets", true);
  Builder builder = before(graph, id);
  builder.named(graph.value(pool.outputs[0]).name);
  const NodeId numbered = builder.node(Op::kMaxPool, pool.inputs, attrs);
  replace_keeping_name(graph, graph.node(id).outputs[0], graph.node(numbered).outputs[0]);
  for (NodeId reader : readers) {
    Attrs with_window = graph.node(reader).attrs;
    for (const char* each : {"kernel_shape", "strides", "pads", "dilations"}) with_window.set(each, window.ints(each));
    Builder at = before(graph, reader);
    const ValueId dx = graph.node(reader).outputs[0];
    const ValueId made =
        at.named(graph.value(dx).name)
            .op(Op::kMaxPoolGrad, {graph.node(reader).inputs[0], graph.node(numbered).outputs[1]}, with_window);
    replace_keeping_name(graph, dx, made);
  }
  return true;
}

bool number_pool_places(Graph& graph) {
  return rewrite_nodes(graph, 1, [&](NodeId id) { return rewrite_pool(graph, id); });
}

}  // namespace lowtide
