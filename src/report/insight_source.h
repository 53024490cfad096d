// What the tables are made of: the optimizer's parts, so that each table is a function of plain data.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "report/config.h"
#include "report/insight.h"

namespace lowtide {

struct InsightSource {
  const Graph& graph;
  std::span<const Stash> stashes;
  std::span<const Layer> layers;
  std::span<const Candidate> candidates;
  std::span<const Candidate> defaults;
  std::vector<std::string> clusters;        // by candidate
  std::span<const MemoryRequest> requests;  // what the user wrote
  const Selection& selection;
  int level = 0;
};

// The user's configuration, or the level that overrules it; empty: nothing was asked for.
std::string user_config(const InsightSource& source);

// By candidate: whether the selection chose it.
std::vector<bool> chosen_flags(const InsightSource& source);

// How many were asked for; none: not switched on. A level asks for all.
std::optional<int> requested_count(const InsightSource& source, std::string_view cluster, const Strategy& strategy);

// The size at these dims; none: a dim has no value.
std::optional<int64_t> value_at(const Dim& size, const DimValues& dims);

std::vector<PlanRow> plan_rows(const InsightSource& source, const DimValues& dims);
std::string insight_summary(const InsightSource& source, const PeakAfter& peak_after);
std::string optimizer_summary(const InsightSource& source);
std::string insight_json(const InsightSource& source, std::span<const PlanRow> rows, const DimValues& dims,
                         int64_t peak_without, int64_t peak_with);

}  // namespace lowtide
