#include <algorithm>
#include <map>

#include "base/text.h"
#include "report/clusters.h"
#include "report/insight_source.h"

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

std::map<std::string, Subgraph> subgraphs_of(const InsightSource& source, const Strategy& strategy) {
  std::map<std::string, Subgraph> subgraphs;
  const std::vector<bool> chosen = chosen_flags(source);
  for (size_t i = 0; i < source.candidates.size(); ++i) {
    const Candidate& candidate = source.candidates[i];
    if (candidate.strategy != &strategy) continue;
    Subgraph& subgraph = subgraphs[source.clusters[i]];
    ++subgraph.patterns[shapes(source, candidate)];
    if (chosen[i]) ++subgraph.applied;
  }
  return subgraphs;
}

std::string block(const std::string& cluster, const std::string& status, const Subgraph& subgraph) {
  std::string text = concat("Subgraph: ", cluster, "\nOptimizationType: ", status, "\nPatterns:\n");
  std::vector<std::pair<std::string, int>> patterns(subgraph.patterns.begin(), subgraph.patterns.end());
  std::stable_sort(patterns.begin(), patterns.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  for (const auto& [shape, frequency] : patterns)
    text += concat("PatternShape:", shape, "  Frequency:", frequency, "\n");
  return text;
}

std::string status_of(const InsightSource& source, const std::string& cluster, const Strategy& strategy, int applied) {
  const std::optional<int> requested = requested_count(source, cluster, strategy);
  if (!requested) return "Disabled";
  return concat(strategy.name, " (requested_count=", *requested, ", actual applied_count=", applied, ")");
}

// What is in force without being asked for, in the form of the other sections; empty: nothing is.
std::string default_sections(const InsightSource& source, const std::string& rule, const std::string& border) {
  std::string text;
  for (const Strategy* strategy : strategies()) {
    std::map<std::string, Subgraph> subgraphs;
    for (const Candidate& candidate : source.defaults)
      if (candidate.strategy == strategy)
        ++subgraphs[cluster_of(source.graph, candidate)].patterns[shapes(source, candidate)];
    if (subgraphs.empty()) continue;
    text += concat("########", strategy->name, "########\n");
    const std::string status = concat(strategy->name, " (by default)");
    for (const auto& [cluster, subgraph] : subgraphs) text += concat(block(cluster, status, subgraph), rule);
    text += border;
  }
  return text;
}

}  // namespace

std::string optimizer_summary(const InsightSource& source) {
  const std::string border = concat(std::string(33, '='), "\n"), rule = concat(std::string(32, '-'), "\n");
  const std::string config = user_config(source);
  std::string text = concat("MemoryOptimizer Summary:\nUser config:", config.empty() ? "" : " ", config, "\n", border);
  bool between = true;
  for (const Strategy* strategy : strategies()) {
    if (strategy->is_default()) continue;
    const std::map<std::string, Subgraph> subgraphs = subgraphs_of(source, *strategy);
    if (!strategy->is_ortmodules && subgraphs.empty()) continue;
    text += concat("########", strategy->name, "########\n");
    size_t rest = subgraphs.size();
    for (const auto& [cluster, subgraph] : subgraphs)
      text += concat(block(cluster, status_of(source, cluster, *strategy, subgraph.applied), subgraph),
                     --rest > 0 || !between ? rule : "");
    text += border;
    // ORTModule's first section has rules between its subgraphs, the others after each: log readers know it so.
    between = false;
  }
  return text + default_sections(source, rule, border);
}

}  // namespace lowtide
