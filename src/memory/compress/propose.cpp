#include "memory/compress/compress.h"
#include "memory/compress/cost.h"

namespace lowtide {

void add_packed(Candidate& candidate, const Graph& graph, ValueId value, const Width& width) {
  const TensorType& type = graph.type(value);
  const Dim bytes = numel(type.shape) * Dim(size_bytes(type.dtype)),
            packed = packed_bytes(numel(type.shape), width.bits);
  const double kept_share = static_cast<double>(width.bits) / static_cast<double>(8 * size_bytes(type.dtype));
  const Cost extra = packing_cost(type, width);
  candidate.outputs.push_back({value, graph.value(value).output_index, bytes, 1 - kept_share});
  candidate.kept_bytes = candidate.kept_bytes + packed;
  candidate.saving = candidate.saving + bytes - packed;
  candidate.extra_flops = candidate.extra_flops + extra.flops;
  candidate.extra_bytes = candidate.extra_bytes + extra.bytes;
}

// One candidate per node, of all its stashed outputs that shrink.
static std::vector<Candidate> propose_compression(const MemoryContext& context) {
  const Graph& graph = context.graph;
  ValueRanges ranges(graph);
  std::vector<Candidate> candidates;
  for (const Stash& stash : context.stash.stashes()) {
    if (stash.pinned || context.stash.is_free(stash.value)) continue;
    const std::optional<Width> width = narrower(graph, ranges, stash.value);
    if (!width) continue;
    // Stashes come in the order of their producers.
    if (candidates.empty() || candidates.back().entry != stash.producer) {
      Candidate candidate;
      candidate.entry = stash.producer;
      candidate.layer = context.layers.find(stash.producer);
      candidates.push_back(std::move(candidate));
    }
    add_packed(candidates.back(), graph, stash.value, *width);
  }
  return candidates;
}

const Strategy strategy::compress = {.name = "Compress",
                                     .description = "compress",
                                     .code = 3,
                                     .propose = propose_compression,
                                     .apply = compress_stashes};
}  // namespace lowtide
