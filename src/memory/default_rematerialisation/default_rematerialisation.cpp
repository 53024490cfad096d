// In force unless it is switched off: what is made again in backward without being asked, since it costs next to
// nothing there. Results of LayerNorm and RMSNorm, and SiLU, whose gradients keep their inputs anyway; their products
// with what is kept anyway, and products of two values that are both kept (gates); copies of inputs; casts between
// floats of what is there (parameters under autocast, activations that are kept) or of such results, and what is f32 of
// 16 bits that are there. Parameters that were gathered from processes are gathered again, but for those that backward
// needs at once.
#include <algorithm>
#include <iterator>
#include <set>

#include "memory/recompute/recompute.h"
#include "ops/rule.h"

namespace lowtide {

namespace {

bool is_float_cast(const Graph& graph, const Node& node) {
  return has_trait(node.op, Trait::kConvertsDtype) && is_float(graph.type(node.inputs[0]).dtype) &&
         is_float(node.attrs.t("to"));
}

// The node that gathered what the value shows or is a copy of; none: it is no gathered parameter.
NodeId gather_of(const StashAnalysis& stash, ValueId value) {
  const Graph& graph = stash.graph();
  NodeId producer = graph.value(value).producer;
  while (producer && is_view(graph.node(producer).op)) producer = graph.value(graph.node(producer).inputs[0]).producer;
  return producer && is_gather(graph.node(producer).op) && stash.in_forward(producer) ? producer : NodeId{};
}

// Whether a pointwise op gives f32 of 16 bits, with nothing else as large among its operands: what a cast behind which
// it stands would be made again for.
bool widens(const Graph& graph, const Node& node) {
  if (info(node.op).category != OpCategory::kPointwise || !node.attrs.has("computes")) return false;
  const TensorType& y = graph.type(node.outputs[0]);
  const auto is_as_large = [&](ValueId input) { return input && graph.type(input).shape == y.shape; };
  const auto is_small = [&](ValueId input) { return !is_as_large(input) || is_half(graph.type(input).dtype); };
  return y.dtype == DType::kF32 && std::any_of(node.inputs.begin(), node.inputs.end(), is_as_large) &&
         std::all_of(node.inputs.begin(), node.inputs.end(), is_small);
}

// The gathers that the last reader of gathered parameters in forward and the first one in backward both read.
std::set<NodeId> needed_at_once(const StashAnalysis& stash) {
  std::set<NodeId> last, first;
  bool in_forward = true;
  for (NodeId id : stash.graph().order()) {
    const Node& node = stash.graph().node(id);
    in_forward = in_forward && !is_yield(node.op);
    if (is_yield(node.op) || is_view(node.op)) continue;
    std::set<NodeId> gathers;
    for (ValueId input : node.inputs)
      if (const NodeId gather = input ? gather_of(stash, input) : NodeId{}) gathers.insert(gather);
    if (gathers.empty()) continue;
    (in_forward ? last : first) = std::move(gathers);
    if (!in_forward) break;
  }
  std::set<NodeId> both;
  std::set_intersection(last.begin(), last.end(), first.begin(), first.end(), std::inserter(both, both.end()));
  return both;
}

// Whether what a process sends is there in backward: its part of a parameter, or several such parts, joined; or is
// rounded from there.
bool is_sent_again(const StashAnalysis& stash, ValueId message) {
  if (stash.is_alive(message)) return true;
  const NodeId joined = stash.graph().value(stash.base(message)).producer;
  const std::vector<ValueId>& parts = stash.graph().node(joined).inputs;
  if (is_float_cast(stash.graph(), stash.graph().node(joined))) return is_sent_again(stash, parts[0]);
  return std::all_of(parts.begin(), parts.end(), [&](ValueId part) { return stash.is_free(part); });
}

// Whether backward can make the node's first output again from what it reads anyway, perhaps made again itself.
bool is_cheap_again(const MemoryContext& context, const Node& node) {
  const Graph& graph = context.graph;
  const StashAnalysis& stash = context.stash;
  // A view with bytes of its own is a copy: of what the caller holds, it is made again.
  if (is_view(node.op)) return stash.is_free(node.inputs[0]) || gather_of(stash, node.inputs[0]);
  if (is_gather(node.op)) return is_sent_again(stash, node.inputs[0]);
  const bool has_inputs = std::all_of(node.inputs.begin(), node.inputs.end(),
                                      [&](ValueId input) { return !input || stash.is_alive(input); });
  if (has_trait(node.op, Trait::kRematerialisedByDefault)) return has_inputs;
  if (context.cast_again && has_inputs && widens(graph, node)) return true;
  if (has_trait(node.op, Trait::kRematerialisedAlong)) {
    const auto is_made_again = [&](ValueId input) {
      const Stash* kept = stash.find(input);
      if (kept == nullptr || kept->pinned || kept->output_index != 0) return false;
      const Node& producer = graph.node(kept->producer);
      return has_trait(producer.op, Trait::kRematerialisedByDefault) && is_cheap_again(context, producer);
    };
    const auto is_kept = [&](ValueId input) { return stash.find(input) != nullptr; };
    return has_inputs && (std::any_of(node.inputs.begin(), node.inputs.end(), is_made_again) ||
                          std::all_of(node.inputs.begin(), node.inputs.end(), is_kept));
  }
  if (!context.cast_again || !is_float_cast(graph, node)) return false;
  if (has_inputs) return true;
  const Value& cast = graph.value(stash.base(node.inputs[0]));
  return cast.producer && cast.output_index == 0 && stash.in_forward(cast.producer) &&
         is_cheap_again(context, graph.node(cast.producer));
}

std::vector<Candidate> propose_rematerialisation(const MemoryContext& context) {
  std::vector<Candidate> candidates;
  const std::set<NodeId> stay = needed_at_once(context.stash);
  for (const Stash& stash : context.stash.stashes()) {
    if (stash.pinned || stash.output_index != 0 || stay.contains(gather_of(context.stash, stash.value))) continue;
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
