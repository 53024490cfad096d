#include "memory/compress/compress.h"
#include "memory/compress/width.h"
#include "ops/builder.h"
#include "ops/rule.h"

namespace lowtide {

// What packing the value in forward and unpacking it in backward costs.
static Cost cost_of(const TensorType& type, const Width& width) {
  Graph scratch;
  Builder builder(scratch);
  const ValueId x = scratch.add_input("x", type, InputKind::kInput);
  const Attrs pack{{"bits", Dim(width.bits)}, {"low", Dim(width.low)}};
  Attrs unpack = pack;
  unpack.set("to", type.dtype);
  unpack.set("shape", type.shape);
  builder.op(Op::kUnpackBits, {builder.op(Op::kPackBits, {x}, pack)}, unpack);
  Cost total{0, 0};
  for (NodeId id : scratch.order()) {
    const Cost each = cost(scratch, id);
    total = {total.flops + each.flops, total.bytes + each.bytes};
  }
  return total;
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
    Candidate& candidate = candidates.back();
    const TensorType& type = graph.type(stash.value);
    const Dim packed = packed_bytes(numel(type.shape), width->bits);
    const double kept_share = static_cast<double>(width->bits) / static_cast<double>(8 * size_bytes(type.dtype));
    const Cost extra = cost_of(type, *width);
    candidate.outputs.push_back({stash.value, stash.output_index, stash.bytes, 1 - kept_share});
    candidate.kept_bytes = candidate.kept_bytes + packed;
    candidate.saving = candidate.saving + stash.bytes - packed;
    candidate.extra_flops = candidate.extra_flops + extra.flops;
    candidate.extra_bytes = candidate.extra_bytes + extra.bytes;
  }
  return candidates;
}

const Strategy strategy::compress = {.name = "Compress",
                                     .description = "compress",
                                     .code = 3,
                                     .propose = propose_compression,
                                     .apply = compress_stashes};
}  // namespace lowtide
