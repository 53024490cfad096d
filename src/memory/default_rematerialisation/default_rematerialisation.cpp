// In force unless it is switched off: what is made again in backward without being asked, since it costs next to
// nothing there. Results of LayerNorm and RMSNorm, and SiLU, whose gradients keep their inputs anyway; copies of
// inputs; casts between floats of what is there (parameters under autocast, activations that are kept) or of such
// results.
#include <algorithm>

#include "memory/recompute/recompute.h"
#include "ops/rule.h"

namespace lowtide {

namespace {

bool is_float_cast(const Graph& graph, const Node& node) {
  return has_trait(node.op, Trait::kConvertsDtype) && is_float(graph.type(node.inputs[0]).dtype) &&
         is_float(node.attrs.t("to"));
}

// Whether backward can make the node's first output again from what it reads anyway, perhaps made again itself.
bool is_cheap_again(const MemoryContext& context, const Node& node) {
  const Graph& graph = context.graph;
  const StashAnalysis& stash = context.stash;
  // A view with bytes of its own is a copy: of what the caller holds, it is made again.
  if (is_view(node.op)) return stash.is_free(node.inputs[0]);
  const bool has_inputs = std::all_of(node.inputs.begin(), node.inputs.end(),
                                      [&](ValueId input) { return !input || stash.is_alive(input); });
  if (has_trait(node.op, Trait::kRematerialisedByDefault)) return has_inputs;
  if (!context.cast_again || !is_float_cast(graph, node)) return false;
  if (has_inputs) return true;
  const Value& cast = graph.value(stash.base(node.inputs[0]));
  return cast.producer && cast.output_index == 0 && stash.in_forward(cast.producer) &&
         is_cheap_again(context, graph.node(cast.producer));
}

std::vector<Candidate> propose_rematerialisation(const MemoryContext& context) {
  std::vector<Candidate> candidates;
  for (const Stash& stash : context.stash.stashes()) {
    if (stash.pinned || stash.output_index != 0) continue;
    if (!is_cheap_again(context, context.graph.node(stash.producer))) continue;
    const Cost price = cost(context.graph, stash.producer);
    Candidate candidate;
    candidate.entry = stash.producer;
    candidate.outputs = {{stash.value, 0, stash.bytes, 1}};
    candidate.nodes = {stash.producer};
    candidate.saving = stash.bytes;
    candidate.extra_flops = price.flops;
    candidate.extra_bytes = price.bytes;
    candidate.layer = context.layers.find(stash.producer);
    candidates.push_back(std::move(candidate));
  }
  return candidates;
}

}  // namespace

const Strategy strategy::default_rematerialisation = {.name = "DefaultRematerialisation",
                                                      .description = "default rematerialisation",
                                                      .default_name = "default_rematerialisation",
                                                      .propose = propose_rematerialisation,
                                                      .apply = run_again};
}  // namespace lowtide
