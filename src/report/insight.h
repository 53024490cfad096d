// What the memory optimizer tells users: plan rows with savings, the two tables of the DEVINFO log, JSON.
// Formats are those of ORTModule's documents; golden files beside this one hold them.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "memory/optimizer.h"
#include "report/selection.h"
#include "report/symbolic_bytes.h"

namespace lowtide {

// One combination of plans that can be switched on: "Reshape+Where+BiasSoftmax+:1:-1".
struct PlanRow {
  std::string combination;
  int frequency = 0;                    // entry nodes
  Dim saving;                           // bytes, over all occurrences; a value that several of them keep counts once
  std::optional<int64_t> saving_bytes;  // at the dims of plan_rows(); none: a dim has no value there
  bool on = false;                      // in force for at least one of its candidates
  std::vector<int32_t> candidates;      // indices
  std::optional<int64_t> peak_after;  // the step's planned peak with the row switched on as well; the caller's to fill
};

// Groups candidates by cluster and type: largest saving at these dims first, then by text.
std::vector<PlanRow> plan_rows(const MemoryOptimizer& optimizer, const Selection& selection, const DimValues& dims);

// The plan rows of the feature table, with their header line and the blanks that align them below the features.
std::string plan_row_lines(std::span<const PlanRow> rows);

// Notes 1 and 2 below the feature table: how to switch on several plans, and the dims that the savings hold at.
std::string plan_notes(const DimValues& dims);

// "MemoryInsight Summary - User config: …": nodes clustered by what they stash and which options they have; most
// frequent first. `peak_after(candidates)` gives the planned peak with these switched on besides the selection (in
// place of what it has for the same entry nodes); without it the column shows '-'.
using PeakAfter = std::function<int64_t(const std::vector<int32_t>& candidates)>;
std::string insight_summary(const MemoryOptimizer& optimizer, const Selection& selection, const PeakAfter& peak_after);

// "MemoryOptimizer Summary:": ORTModule's sections Recompute and RecomputeWithCompromise, then one for every other
// strategy that has candidates, at last those that are in force by default.
std::string optimizer_summary(const MemoryOptimizer& optimizer, const Selection& selection);

// Everything as JSON. Sizes come as numbers at `dims` (null where a dim has no value) and as text ("…_symbolic").
//   config, level       what the user asked for
//   dims                {name: value}
//   peak_without, peak_with, stashed, stashed_symbolic    bytes of the step's peaks, and of all stashes
//   requests            [{config, found, applied}]
//   warnings            [text]
//   rows                [{combination, frequency, on, saving, saving_symbolic, peak_after, candidates: [index]}]
//   candidates          [{type, cluster, on, node, module, line, layer (its path, or null), outputs, kept: [name],
//                       kept_bytes, kept_bytes_symbolic, nodes: [name], saving, saving_symbolic, extra_flops,
//                       extra_bytes}]: nodes go by the name of their first output
//   defaults            candidates that are in force without being asked for
//   candidates.outputs  [{name, index, dtype, shape: [text], bytes, bytes_symbolic, saved (share), reads: [name]}]:
//                       `reads` are the names under which backward reads the bytes, views among them
std::string insight_json(const MemoryOptimizer& optimizer, const Selection& selection, std::span<const PlanRow> rows,
                         const DimValues& dims, int64_t peak_without, int64_t peak_with);

}  // namespace lowtide
