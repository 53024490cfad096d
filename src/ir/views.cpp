#include "ir/views.h"

namespace lowtide {

ValueId base_of_views(const Graph& graph, ValueId value) {
  while (true) {
    const NodeId producer = graph.value(value).producer;
    if (!producer || !is_view(graph.node(producer).op)) return value;
    value = graph.node(producer).inputs[0];
  }
}

}  // namespace lowtide
