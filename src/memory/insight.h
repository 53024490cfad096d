// What the memory optimizer tells users: plan rows with savings, the two tables of the DEVINFO log, JSON.
// Formats are those of the ancestor's documents; golden files beside this one hold them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "memory/optimizer.h"
#include "memory/symbolic_bytes.h"

namespace lowtide {

// One combination of plans that can be switched on: "Reshape+Where+BiasSoftmax+:1:-1".
struct PlanRow {
  std::string combination;
  int frequency = 0;                  // entry nodes
  Dim saving;                         // bytes, over all occurrences
  bool on = false;                    // every plan of the row is in force
  std::vector<int32_t> candidates;    // indices
  std::optional<int64_t> peak_after;  // the step's planned peak with the row switched on as well
};

// Groups candidates by cluster and type: largest saving at these dims first.
std::vector<PlanRow> plan_rows(const MemoryOptimizer& optimizer, const Selection& selection, const DimValues& dims);

// "MemoryInsight Summary - User config: …": candidates by node-level activation patterns.
// `peak_after(candidates)` gives the planned peak with these switched on besides the selection; may be empty.
using PeakAfter = std::function<int64_t(const std::vector<int32_t>& candidates)>;
std::string insight_summary(const MemoryOptimizer& optimizer, const Selection& selection, const DimValues& dims,
                            const PeakAfter& peak_after);

// "MemoryOptimizer Summary: User config: …": sections Recompute, RecomputeWithCompromise, Compress.
std::string optimizer_summary(const MemoryOptimizer& optimizer, const Selection& selection);

// Everything as JSON: rows, candidates with shapes, bytes, origins; peaks with and without.
std::string insight_json(const MemoryOptimizer& optimizer, const Selection& selection, const std::vector<PlanRow>& rows,
                         const DimValues& dims, int64_t peak_without, int64_t peak_with);

}  // namespace lowtide
