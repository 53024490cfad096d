#include "memory/compress/cost.h"

#include "ops/builder.h"

namespace lowtide {

// The two nodes by themselves.
static Graph packing_of(const TensorType& type, const Width& width) {
  Graph graph;
  Builder builder(graph);
  const ValueId x = graph.add_input("x", type, InputKind::kInput);
  const Attrs pack{{"bits", Dim(width.bits)}, {"low", Dim(width.low)}};
  Attrs unpack = pack;
  unpack.set("to", type.dtype);
  unpack.set("shape", type.shape);
  builder.op(Op::kUnpackBits, {builder.op(Op::kPackBits, {x}, pack)}, unpack);
  return graph;
}

Cost packing_cost(const TensorType& type, const Width& width) {
  const Graph graph = packing_of(type, width);
  Cost total{0, 0};
  for (NodeId id : graph.order()) {
    const Cost each = cost(graph, id);
    total = {total.flops + each.flops, total.bytes + each.bytes};
  }
  return total;
}

double packing_milliseconds(const TensorType& type, const Width& width, const DimValues& dims, const Prices& prices) {
  return predicted_milliseconds(packing_of(type, width), prices, dims);
}

}  // namespace lowtide
