#include "report/refusals.h"

#include <algorithm>
#include <set>

#include "base/text.h"
#include "report/clusters.h"

namespace lowtide {
namespace {

// The candidate of that cluster, by its exact name before others that mean the same work; nullptr: none.
const Candidate* find(const Graph& graph, std::span<const Candidate> candidates, std::string_view cluster) {
  for (const Candidate& candidate : candidates)
    if (cluster_of(graph, candidate) == cluster) return &candidate;
  const std::string canonical = canonical_cluster(cluster);
  for (const Candidate& candidate : candidates)
    if (!canonical.empty() && canonical_cluster(cluster_of(graph, candidate)) == canonical) return &candidate;
  return nullptr;
}

bool is_rematerialised(const MemoryContext& context, std::string_view type) {
  const Graph& graph = context.graph;
  return std::any_of(graph.order().begin(), graph.order().end(), [&](NodeId id) {
    const Node& node = graph.node(id);
    return !node.outputs.empty() && node.outputs[0] && context.stash.is_rematerialised(node.outputs[0]) &&
           cluster_name(node) == type;
  });
}

std::string why_other_type(const MemoryRequest& request, const Graph& graph, const Candidate& found) {
  const auto code = [](const Strategy& strategy) { return concat(strategy.code, " (", strategy.name, ")"); };
  const std::string cluster = cluster_of(graph, found), here = cluster == request.cluster ? "it" : cluster;
  return concat("no plan of type ", code(*find_strategy(request.code)), "; ", here, " can be had as type ",
                code(*found.strategy));
}

// A plan that a wider probe would find; empty: there is none.
std::string why_not_probed(const MemoryRequest& request, const MemoryContext& context) {
  MemoryContext wider = context;
  wider.probe_costly = true;
  wider.keep_layer_borders = false;
  const std::vector<Candidate> candidates = propose_candidates(wider);
  const Candidate* found = find(context.graph, candidates, request.cluster);
  if (found == nullptr) return "";
  std::vector<std::string> reasons;
  std::set<std::string> costly;
  for (NodeId id : found->nodes) {
    const Node& node = context.graph.node(id);
    if (is_call(node.op) || info(node.op).recompute == RecomputePrice::kCostly) costly.emplace(cluster_name(node));
  }
  if (!context.probe_costly && !costly.empty())
    reasons.push_back(concat("the probe level 0 leaves out ", join(costly, ", ")));
  wider.keep_layer_borders = context.keep_layer_borders;
  const std::vector<Candidate> inside = propose_candidates(wider);
  if (find(context.graph, inside, request.cluster) == nullptr)
    reasons.push_back("its output is a layer's input (boundary 1)");
  return join(reasons, "; ");
}

// Of ops by their own names: what became of those that stand in forward; empty: none does, or those that do can be had
// under longer names.
std::string why_not_given_up(const MemoryContext& context, std::span<const Candidate> candidates,
                             std::string_view type) {
  const Graph& graph = context.graph;
  bool stands = false;
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (!context.stash.in_forward(id) || cluster_name(node) != type) continue;
    stands = true;
    const bool is_kept = std::any_of(node.outputs.begin(), node.outputs.end(),
                                     [&](ValueId output) { return output && context.stash.find(output) != nullptr; });
    if (!is_kept) continue;
    if (std::any_of(candidates.begin(), candidates.end(), [&](const Candidate& other) { return other.entry == id; }))
      return "";
    if (is_call(node.op) && !context.is_pure_call(node))
      return concat(type, " runs again only where lowtide.ortmodule.declare_pure says that it only computes");
    return concat("what ", type, " makes is kept, and cannot be made again from what is there in backward");
  }
  return stands ? concat("not stashed: backward reads nothing that ", type, " makes") : "";
}

}  // namespace

std::string why_unknown(const MemoryRequest& request, const MemoryContext& context,
                        std::span<const Candidate> candidates) {
  const std::string begin = concat("ORTMODULE_MEMORY_OPT_CONFIG: ", to_string(request), ": ");
  const std::vector<std::string> types = op_types(request.cluster);
  const std::string only = types.size() == 1 ? types[0] : "";
  if (is_rematerialised(context, only))
    return concat(begin, "not stashed: ", only, " is made again in backward by default");
  if (const Candidate* found = find(context.graph, candidates, request.cluster))
    return concat(begin, why_other_type(request, context.graph, *found));
  if (const std::string why = why_not_probed(request, context); !why.empty()) return concat(begin, why);
  if (const std::string why = why_not_given_up(context, candidates, only); !why.empty()) return concat(begin, why);
  if (const std::vector<std::string> inside = absorbed_by(context.graph, request.cluster); !inside.empty())
    return concat(begin, "not stashed: absorbed by ", join(inside, ", "));
  std::set<std::string> known;
  for (const Candidate& candidate : candidates)
    if (candidate.strategy->code == request.code) known.insert(cluster_of(context.graph, candidate));
  if (known.empty()) return concat(begin, "this model has no plan of type ", request.code);
  return concat(begin, "no such subgraph in this model; the nearest are ",
                join(nearest_clusters(request.cluster, {known.begin(), known.end()}, 3), ", "));
}

}  // namespace lowtide
