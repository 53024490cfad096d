#include "report/insight.h"

#include "report/clusters.h"
#include "report/insight_source.h"

namespace lowtide {
namespace {

InsightSource source_of(const MemoryOptimizer& optimizer, const Selection& selection) {
  const MemoryContext& context = optimizer.context();
  return {context.graph,
          context.stash.stashes(),
          context.layers.layers,
          optimizer.candidates(),
          optimizer.defaults(),
          clusters_of(context.graph, optimizer.candidates()),
          optimizer.options().requests,
          selection,
          optimizer.options().level};
}

}  // namespace

std::vector<PlanRow> plan_rows(const MemoryOptimizer& optimizer, const Selection& selection, const DimValues& dims) {
  return plan_rows(source_of(optimizer, selection), dims);
}

std::string insight_summary(const MemoryOptimizer& optimizer, const Selection& selection, const PeakAfter& peak_after) {
  return insight_summary(source_of(optimizer, selection), peak_after);
}

std::string optimizer_summary(const MemoryOptimizer& optimizer, const Selection& selection) {
  return optimizer_summary(source_of(optimizer, selection));
}

std::string insight_json(const MemoryOptimizer& optimizer, const Selection& selection, std::span<const PlanRow> rows,
                         const DimValues& dims, int64_t peak_without, int64_t peak_with) {
  return insight_json(source_of(optimizer, selection), rows, dims, peak_without, peak_with);
}

}  // namespace lowtide
