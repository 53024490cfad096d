#include "report/insight_source.h"

#include <algorithm>

#include "base/text.h"
#include "report/clusters.h"

namespace lowtide {

std::string user_config(const InsightSource& source) {
  if (source.level > 0) return concat("ORTMODULE_MEMORY_OPT_LEVEL=", source.level);
  return join(source.requests, ",", [](std::ostream& out, const MemoryRequest& item) { out << to_string(item); });
}

std::vector<bool> chosen_flags(const InsightSource& source) {
  std::vector<bool> flags(source.candidates.size());
  for (const int32_t index : source.selection.chosen) flags[static_cast<size_t>(index)] = true;
  return flags;
}

std::optional<int> requested_count(const InsightSource& source, std::string_view cluster, const Strategy& strategy) {
  const bool chosen = std::any_of(source.selection.chosen.begin(), source.selection.chosen.end(), [&](int32_t index) {
    const size_t at = static_cast<size_t>(index);
    return source.clusters[at] == cluster && source.candidates[at].strategy == &strategy;
  });
  if (source.level > 0) return chosen ? std::optional(-1) : std::nullopt;
  for (const bool exactly : {true, false}) {
    // By another name only what is in force: the request may have meant others of that name.
    if (!exactly && !chosen) break;
    for (const auto& [request, found, applied] : source.selection.outcomes) {
      const bool meant =
          request.cluster == cluster || (!exactly && canonical_cluster(request.cluster) == canonical_cluster(cluster));
      if (meant && request.code == strategy.code && request.count != 0) return request.count;
    }
  }
  return std::nullopt;
}

std::optional<int64_t> value_at(const Dim& size, const DimValues& dims) {
  std::set<std::string> symbols;
  collect_symbols(size, symbols);
  for (const std::string& symbol : symbols)
    if (!dims.contains(symbol)) return std::nullopt;
  return evaluate(size, dims);
}

}  // namespace lowtide
