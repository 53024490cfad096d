#include "memory/insight_source.h"

#include <algorithm>

#include "base/text.h"

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

std::optional<int> requested_count(const InsightSource& source, std::string_view cluster, OptimizationType type) {
  if (source.level == 0) {
    for (const RequestOutcome& outcome : source.selection.outcomes)
      if (outcome.request.cluster == cluster && outcome.request.type == type)
        return outcome.request.count == 0 ? std::nullopt : std::optional(outcome.request.count);
  }
  const bool chosen = std::any_of(source.selection.chosen.begin(), source.selection.chosen.end(), [&](int32_t index) {
    const Candidate& candidate = source.candidates[static_cast<size_t>(index)];
    return candidate.cluster == cluster && candidate.type == type;
  });
  return chosen ? std::optional(-1) : std::nullopt;
}

std::optional<int64_t> value_at(const Dim& size, const DimValues& dims) {
  std::set<std::string> symbols;
  collect_symbols(size, symbols);
  for (const std::string& symbol : symbols)
    if (!dims.contains(symbol)) return std::nullopt;
  return evaluate(size, dims);
}

}  // namespace lowtide
