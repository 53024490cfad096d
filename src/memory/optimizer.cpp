#include "memory/optimizer.h"

#include <algorithm>

namespace lowtide {

// What the default strategies propose where nothing is made again.
static std::vector<Candidate> propose_defaults(const MemoryContext& context, const std::vector<std::string>& disabled) {
  std::vector<Candidate> defaults;
  for (const Strategy* strategy : strategies()) {
    const bool is_off = std::find(disabled.begin(), disabled.end(), strategy->default_name) != disabled.end();
    if (!strategy->is_default() || is_off) continue;
    for (Candidate& candidate : strategy->propose(context)) {
      candidate.strategy = strategy;
      defaults.push_back(std::move(candidate));
    }
  }
  return defaults;
}

static std::set<ValueId> values_given_up(const std::vector<Candidate>& candidates) {
  std::set<ValueId> values;
  for (const Candidate& candidate : candidates)
    for (const GivenUp& output : candidate.outputs) values.insert(output.value);
  return values;
}

struct MemoryOptimizer::Impl {
  Impl(const Graph& graph, const PlanResult& plan, MemoryOptions asked)
      : options(std::move(asked)),
        layers(find_layers(graph)),
        stash_before(graph, plan),
        defaults(propose_defaults(context_of(stash_before), options.disabled)),
        stash(graph, plan, values_given_up(defaults)),
        context(context_of(stash)),
        candidates(propose_candidates(context)) {}

  MemoryContext context_of(const StashAnalysis& analysis) const {
    return {analysis.graph(),
            analysis,
            layers,
            options.probe.level >= 1 || options.level >= 1,
            options.probe.boundary != 0 || options.level >= 1,
            options.cast_again,
            options.pure_calls};
  }

  const MemoryOptions options;
  const Layers layers;
  const StashAnalysis stash_before;  // nothing made again
  const std::vector<Candidate> defaults;
  const StashAnalysis stash;
  const MemoryContext context;
  const std::vector<Candidate> candidates;
};

MemoryOptimizer::MemoryOptimizer(const Graph& graph, const PlanResult& plan, MemoryOptions options)
    : impl_(std::make_unique<Impl>(graph, plan, std::move(options))) {}

MemoryOptimizer::~MemoryOptimizer() = default;

const MemoryContext& MemoryOptimizer::context() const { return impl_->context; }
const MemoryOptions& MemoryOptimizer::options() const { return impl_->options; }
const std::vector<Candidate>& MemoryOptimizer::candidates() const { return impl_->candidates; }
const std::vector<Candidate>& MemoryOptimizer::defaults() const { return impl_->defaults; }

std::vector<int32_t> MemoryOptimizer::choose_level() const {
  std::vector<int32_t> chosen;
  std::set<NodeId> taken;
  for (size_t i = 0; i < impl_->candidates.size(); ++i) {
    const Candidate& candidate = impl_->candidates[i];
    const int level = candidate.strategy->level;
    if (level == 0 || level > impl_->options.level) continue;
    if (candidate.layer >= 0 && taken.insert(candidate.entry).second) chosen.push_back(static_cast<int32_t>(i));
  }
  return chosen;
}

static Graph rewrite_with(const MemoryContext& context, const std::vector<const Candidate*>& in_force) {
  Graph graph = context.graph.clone();
  std::set<ApplyCandidates> applied;
  for (const Strategy* strategy : strategies()) {
    if (!applied.insert(strategy->apply).second) continue;
    std::vector<const Candidate*> together;
    for (const Candidate* candidate : in_force)
      if (candidate->strategy->apply == strategy->apply) together.push_back(candidate);
    if (!together.empty()) strategy->apply(graph, context, together);
  }
  return graph;
}

Graph MemoryOptimizer::apply(std::span<const int32_t> chosen) const {
  std::vector<const Candidate*> in_force;
  for (const Candidate& candidate : impl_->defaults) in_force.push_back(&candidate);
  for (int32_t index : chosen) in_force.push_back(&impl_->candidates[static_cast<size_t>(index)]);
  return rewrite_with(impl_->context, in_force);
}

Graph MemoryOptimizer::rewrite(std::span<const Candidate> recipes) const {
  std::vector<const Candidate*> in_force;
  for (const Candidate& recipe : recipes) in_force.push_back(&recipe);
  return rewrite_with(impl_->context, in_force);
}

}  // namespace lowtide
