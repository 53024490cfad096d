#include "report/selection.h"

#include <algorithm>
#include <set>

#include "base/text.h"
#include "report/clusters.h"
#include "report/refusals.h"

namespace lowtide {

static std::vector<std::string> level_notices(const MemoryOptimizer& optimizer) {
  const MemoryOptions& options = optimizer.options();
  std::vector<std::string> notices;
  if (options.ignores_requests)
    notices.push_back(concat("ORTMODULE_MEMORY_OPT_LEVEL=", options.level,
                             " recomputes whole layers; ORTMODULE_MEMORY_OPT_CONFIG is ignored"));
  if (optimizer.context().layers.layers.empty())
    notices.push_back(
        concat("ORTMODULE_MEMORY_OPT_LEVEL=", options.level,
               " finds no repeated layers in this model and recomputes nothing; use ORTMODULE_MEMORY_OPT_CONFIG"));
  return notices;
}

static Selection select_requests(const MemoryOptimizer& optimizer) {
  const std::vector<Candidate>& candidates = optimizer.candidates();
  const std::vector<std::string> clusters = clusters_of(optimizer.context().graph, candidates);
  Selection selection;
  std::set<NodeId> taken;
  for (const MemoryRequest& request : optimizer.options().requests) {
    if (request.code == 0) continue;
    RequestOutcome outcome{request};
    std::vector<int32_t> matching;
    for (const bool exactly : {true, false}) {
      const std::string wanted = exactly ? request.cluster : canonical_cluster(request.cluster);
      std::set<std::string> meant;
      for (size_t i = 0; i < candidates.size(); ++i) {
        if (candidates[i].strategy->code != request.code) continue;
        if ((exactly ? clusters[i] : canonical_cluster(clusters[i])) != wanted) continue;
        matching.push_back(static_cast<int32_t>(i));
        meant.insert(clusters[i]);
      }
      if (matching.empty()) continue;
      if (!exactly)
        selection.warnings.push_back(
            concat("ORTMODULE_MEMORY_OPT_CONFIG: ", request.cluster, " is called ", join(meant, ", "), " here"));
      break;
    }
    outcome.found = static_cast<int>(matching.size());
    for (int32_t index : matching) {
      if (request.count >= 0 && outcome.applied >= request.count) break;
      if (!taken.insert(candidates[static_cast<size_t>(index)].entry).second) continue;
      selection.chosen.push_back(index);
      ++outcome.applied;
    }
    if (matching.empty()) selection.warnings.push_back(why_unknown(request, optimizer.context(), candidates));
    selection.outcomes.push_back(std::move(outcome));
  }
  std::sort(selection.chosen.begin(), selection.chosen.end());
  return selection;
}

Selection select(const MemoryOptimizer& optimizer) {
  if (optimizer.options().level == 0) return select_requests(optimizer);
  return {optimizer.choose_level(), {}, level_notices(optimizer)};
}

}  // namespace lowtide
