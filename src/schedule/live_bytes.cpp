#include "schedule/live_bytes.h"

namespace lowtide {

std::vector<int64_t> arena_bytes(const Graph& graph, const Lifetimes& lifetimes, const DimValues& dims) {
  std::vector<int64_t> bytes(graph.value_count(), 0);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const ValueId value{static_cast<int32_t>(i)};
    const Holder holder = lifetimes.lives[i].holder;
    const bool is_planned = holder == Holder::kArena || holder == Holder::kGradient;
    if (!is_planned || lifetimes.owner(value) != value || !graph.is_alive(graph.value(value).producer)) continue;
    const TensorType& type = graph.type(value);
    bytes[i] = padded_bytes(evaluate(numel(type.shape), dims) * size_bytes(type.dtype));
  }
  return bytes;
}

Timeline live_bytes(const Lifetimes& lifetimes, std::span<const int64_t> bytes, size_t positions) {
  Timeline timeline(static_cast<int32_t>(positions));
  for (size_t i = 0; i < bytes.size(); ++i) {
    const Life& life = lifetimes.lives[i];
    timeline.add({life.first, life.is_taken ? life.last - 1 : life.last}, bytes[i]);
  }
  return timeline;
}

}  // namespace lowtide
