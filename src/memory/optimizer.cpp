#include "memory/optimizer.h"

#include <algorithm>
#include <set>

#include "base/text.h"
#include "memory/clusters.h"
#include "memory/compress/compress.h"
#include "memory/recompute/recompute.h"
#include "memory/refusals.h"

namespace lowtide {

void MemoryOptions::ask(int wanted_level, std::string_view config) {
  level = wanted_level;
  requests.clear();
  ignores_requests = level >= 1 && config.find_first_not_of(" \t\r\n") != std::string_view::npos;
  if (level == 0) requests = parse_memory_config(config);
}

struct MemoryOptimizer::Impl {
  Impl(const Graph& graph, const PlanResult& plan, MemoryOptions asked)
      : options(std::move(asked)),
        layers(find_layers(graph)),
        stash(graph, plan,
              options.rebuild ? rebuilt_values(graph, StashAnalysis(graph, plan), options.rebuild_casts)
                              : std::set<ValueId>()),
        context{graph,
                stash,
                layers,
                options.probe.level >= 1 || options.level >= 1,
                options.probe.boundary != 0 || options.level >= 1,
                options.pure_calls} {}

  void choose_level(Selection& selection) const;
  void choose_requests(Selection& selection) const;

  MemoryOptions options;
  Layers layers;
  StashAnalysis stash;
  MemoryContext context;
  Recompute recompute;
  Compress compress;
  std::vector<Candidate> candidates;
};

MemoryOptimizer::MemoryOptimizer(const Graph& graph, const PlanResult& plan, MemoryOptions options)
    : impl_(std::make_unique<Impl>(graph, plan, std::move(options))) {
  Impl& impl = *impl_;
  impl.candidates = impl.recompute.propose(impl.context);
  for (Candidate& candidate : impl.compress.propose(impl.context)) impl.candidates.push_back(std::move(candidate));
  std::stable_sort(impl.candidates.begin(), impl.candidates.end(), [&](const Candidate& a, const Candidate& b) {
    return std::pair(impl.stash.position(a.entry), a.type) < std::pair(impl.stash.position(b.entry), b.type);
  });
}

MemoryOptimizer::~MemoryOptimizer() = default;

const MemoryContext& MemoryOptimizer::context() const { return impl_->context; }
const MemoryOptions& MemoryOptimizer::options() const { return impl_->options; }
const std::vector<Candidate>& MemoryOptimizer::candidates() const { return impl_->candidates; }

Selection MemoryOptimizer::select() const {
  Selection selection;
  if (impl_->options.level >= 1) {
    impl_->choose_level(selection);
  } else {
    impl_->choose_requests(selection);
  }
  std::sort(selection.chosen.begin(), selection.chosen.end());
  return selection;
}

// Every plain plan inside a layer; at level 2, where a node has none, its compromised one.
void MemoryOptimizer::Impl::choose_level(Selection& selection) const {
  if (options.ignores_requests)
    selection.warnings.push_back(concat("ORTMODULE_MEMORY_OPT_LEVEL=", options.level,
                                        " recomputes whole layers; ORTMODULE_MEMORY_OPT_CONFIG is ignored"));
  if (layers.layers.empty())
    selection.warnings.push_back(
        concat("ORTMODULE_MEMORY_OPT_LEVEL=", options.level,
               " finds no repeated layers in this model and recomputes nothing; use ORTMODULE_MEMORY_OPT_CONFIG"));
  std::set<NodeId> taken;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Candidate& candidate = candidates[i];
    const bool wanted = candidate.type == OptimizationType::kRecompute ||
                        (candidate.type == OptimizationType::kRecomputeWithCompromise && options.level >= 2);
    if (!wanted || candidate.layer < 0 || !taken.insert(candidate.entry).second) continue;
    selection.chosen.push_back(static_cast<int32_t>(i));
  }
}

void MemoryOptimizer::Impl::choose_requests(Selection& selection) const {
  std::set<NodeId> taken;
  for (const MemoryRequest& request : options.requests) {
    RequestOutcome outcome{request};
    std::vector<int32_t> matching;
    for (const bool exactly : {true, false}) {
      const std::string wanted = exactly ? request.cluster : canonical_cluster(request.cluster);
      std::set<std::string> meant;
      for (size_t i = 0; i < candidates.size(); ++i) {
        const std::string& cluster = candidates[i].cluster;
        if (candidates[i].type != request.type || (exactly ? cluster : canonical_cluster(cluster)) != wanted) continue;
        matching.push_back(static_cast<int32_t>(i));
        meant.insert(cluster);
      }
      if (matching.empty()) continue;
      if (!exactly && request.type != OptimizationType::kNone)
        selection.warnings.push_back(
            concat("ORTMODULE_MEMORY_OPT_CONFIG: ", request.cluster, " is called ", join(meant, ", "), " here"));
      break;
    }
    outcome.found = static_cast<int>(matching.size());
    if (request.type == OptimizationType::kNone) continue;
    for (int32_t index : matching) {
      if (request.count >= 0 && outcome.applied >= request.count) break;
      if (!taken.insert(candidates[static_cast<size_t>(index)].entry).second) continue;
      selection.chosen.push_back(index);
      ++outcome.applied;
    }
    if (matching.empty()) selection.warnings.push_back(why_unknown(request, context, candidates));
    selection.outcomes.push_back(std::move(outcome));
  }
}

Graph MemoryOptimizer::apply(std::span<const int32_t> chosen) const {
  Graph graph = impl_->context.graph.clone();
  std::vector<const Candidate*> recomputed, compressed;
  for (int32_t index : chosen) {
    const Candidate& candidate = impl_->candidates[static_cast<size_t>(index)];
    (candidate.type == OptimizationType::kCompress ? compressed : recomputed).push_back(&candidate);
  }
  impl_->recompute.apply(graph, impl_->context, recomputed);
  impl_->compress.apply(graph, impl_->context, compressed);
  return graph;
}

}  // namespace lowtide
