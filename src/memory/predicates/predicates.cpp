// Masks that one operand decides (IsNaN, Not) are made again from it where it is there in backward: type 5 of a
// configuration.
#include "memory/recompute/recompute.h"
#include "ops/rule.h"

namespace lowtide {

static std::vector<Candidate> propose_predicates(const MemoryContext& context) {
  std::vector<Candidate> candidates;
  for (const Stash& stash : context.stash.stashes()) {
    const Node& node = context.graph.node(stash.producer);
    if (stash.pinned || context.graph.type(stash.value).dtype != DType::kBool || node.inputs.size() != 1) continue;
    if (info(node.op).recompute != RecomputePrice::kCheap || !context.stash.is_alive(node.inputs[0])) continue;
    const Cost price = cost(context.graph, stash.producer);
    Candidate candidate;
    candidate.entry = stash.producer;
    candidate.outputs = {{stash.value, stash.output_index, stash.bytes, 1}};
    candidate.nodes = {stash.producer};
    candidate.saving = stash.bytes;
    candidate.extra_flops = price.flops;
    candidate.extra_bytes = price.bytes;
    candidate.layer = context.layers.find(stash.producer);
    candidates.push_back(std::move(candidate));
  }
  return candidates;
}

const Strategy strategy::predicates = {.name = "RecomputePredicate",
                                       .description = "recompute a predicate",
                                       .code = 5,
                                       .propose = propose_predicates,
                                       .apply = run_again};

}  // namespace lowtide
