#include <algorithm>
#include <map>

#include "base/text.h"
#include "memory/insight_source.h"

namespace lowtide {
namespace {

struct Subgraph {
  std::map<std::string, int> patterns;  // shapes of what a node gives up → number of nodes
  int applied = 0;
};

std::string shapes(const InsightSource& source, const Candidate& candidate) {
  return join(candidate.outputs, "and ", [&](std::ostream& out, const GivenUp& output) {
    out << symbolic_shape(source.graph.type(output.value).shape);
  });
}

std::map<std::string, Subgraph> subgraphs_of(const InsightSource& source, OptimizationType type) {
  std::map<std::string, Subgraph> subgraphs;
  const std::vector<bool> chosen = chosen_flags(source);
  for (size_t i = 0; i < source.candidates.size(); ++i) {
    const Candidate& candidate = source.candidates[i];
    if (candidate.type != type) continue;
    Subgraph& subgraph = subgraphs[candidate.cluster];
    ++subgraph.patterns[shapes(source, candidate)];
    if (chosen[i]) ++subgraph.applied;
  }
  return subgraphs;
}

std::string block(const InsightSource& source, const std::string& cluster, OptimizationType type,
                  const Subgraph& subgraph) {
  const std::optional<int> requested = requested_count(source, cluster, type);
  std::string text = concat("Subgraph: ", cluster, "\nOptimizationType: ");
  text += requested
              ? concat(name(type), " (requested_count=", *requested, ", actual applied_count=", subgraph.applied, ")")
              : "Disabled";
  text += "\nPatterns:\n";
  std::vector<std::pair<std::string, int>> patterns(subgraph.patterns.begin(), subgraph.patterns.end());
  std::stable_sort(patterns.begin(), patterns.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  for (const auto& [shape, frequency] : patterns)
    text += concat("PatternShape:", shape, "  Frequency:", frequency, "\n");
  return text;
}

}  // namespace

std::string optimizer_summary(const InsightSource& source) {
  const std::string border = concat(std::string(33, '='), "\n"), rule = concat(std::string(32, '-'), "\n");
  const std::string config = user_config(source);
  std::string text = concat("MemoryOptimizer Summary:\nUser config:", config.empty() ? "" : " ", config, "\n", border);
  for (const OptimizationType type :
       {OptimizationType::kRecompute, OptimizationType::kRecomputeWithCompromise, OptimizationType::kCompress}) {
    const std::map<std::string, Subgraph> subgraphs = subgraphs_of(source, type);
    if (type == OptimizationType::kCompress && subgraphs.empty()) continue;
    text += concat("########", name(type), "########\n");
    // ORTModule's first section has rules between its subgraphs, the others after each: log readers know it so.
    const bool between = type == OptimizationType::kRecompute;
    size_t rest = subgraphs.size();
    for (const auto& [cluster, subgraph] : subgraphs)
      text += concat(block(source, cluster, type, subgraph), --rest > 0 || !between ? rule : "");
    text += border;
  }
  return text;
}

}  // namespace lowtide
