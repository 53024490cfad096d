#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"
#include "report/insight_source.h"

namespace lowtide {
namespace {

// Bytes that the candidates of a row give up, less what they keep instead. What two of them keep is kept once.
Dim saving_of(const InsightSource& source, const std::vector<int32_t>& candidates) {
  Dim saving;
  std::set<ValueId> kept;
  for (const int32_t index : candidates) {
    const Candidate& candidate = source.candidates[static_cast<size_t>(index)];
    for (const GivenUp& output : candidate.outputs) saving = saving + output.bytes;
    kept.insert(candidate.kept.begin(), candidate.kept.end());
    if (candidate.kept.empty()) saving = saving - candidate.kept_bytes;
  }
  for (const ValueId value : kept) {
    const TensorType& type = source.graph.type(value);
    saving = saving - numel(type.shape) * Dim(size_bytes(type.dtype));
  }
  return saving;
}

// A table's cell in a column that is `width` wide, or as wide as it needs with some blanks after it.
constexpr size_t kGap = 4;

size_t column_width(size_t least, std::span<const std::string> cells) {
  for (const std::string& cell : cells) least = std::max(least, cell.size() + kGap);
  return least;
}

void pad(std::string& text, size_t width) { text.resize(std::max(width, text.size()), ' '); }

}  // namespace

std::vector<PlanRow> plan_rows(const InsightSource& source, const DimValues& dims) {
  std::map<std::string, PlanRow> by_combination;
  const std::vector<bool> chosen = chosen_flags(source);
  for (size_t i = 0; i < source.candidates.size(); ++i) {
    const Candidate& candidate = source.candidates[i];
    const std::string combination = to_string(MemoryRequest{source.clusters[i], candidate.strategy->code, -1});
    PlanRow& row = by_combination[combination];
    row.combination = combination;
    row.candidates.push_back(static_cast<int32_t>(i));
    row.on = row.on || chosen[i];
  }
  std::vector<PlanRow> rows;
  for (auto& [combination, row] : by_combination) {
    std::set<NodeId> entries;
    for (const int32_t index : row.candidates) entries.insert(source.candidates[static_cast<size_t>(index)].entry);
    row.frequency = static_cast<int>(entries.size());
    row.saving = saving_of(source, row.candidates);
    row.saving_bytes = value_at(row.saving, dims);
    rows.push_back(std::move(row));
  }
  std::stable_sort(rows.begin(), rows.end(), [](const PlanRow& a, const PlanRow& b) {
    return a.saving_bytes.value_or(0) > b.saving_bytes.value_or(0);
  });
  return rows;
}

// The columns of the feature table, then those of its plans:
//    - Plan 1             :   ON    :   FastGelu+:1:-1    12      25,165,824      4096.0*a*b    104,857,600
std::string plan_row_lines(std::span<const PlanRow> rows) {
  std::vector<std::vector<std::string>> columns = {
      {"Config"}, {"Freq"}, {"Saving(B)"}, {"Saving Symbolic(Bytes)"}, {"Peak after(B)"}};
  auto bytes = [](const std::optional<int64_t>& number) { return number ? with_commas(*number) : std::string("-"); };
  for (const PlanRow& row : rows) {
    columns[0].push_back(row.combination);
    columns[1].push_back(concat(row.frequency));
    columns[2].push_back(bytes(row.saving_bytes));
    columns[3].push_back(symbolic_bytes(row.saving));
    columns[4].push_back(bytes(row.peak_after));
  }
  constexpr size_t kLeast[] = {60, 8, 16, 0, 0};
  constexpr size_t kName = 24, kFeature = 38;  // where the state and the description of a feature start
  std::string text;
  for (size_t line = 0; line <= rows.size(); ++line) {
    std::string written;
    if (line > 0) {
      written = concat("   - Plan ", line);
      pad(written, kName);
      written += rows[line - 1].on ? ":   ON    :" : ":   OFF   :";
    }
    pad(written, kFeature);
    for (size_t column = 0; column < columns.size(); ++column) {
      const size_t start = written.size();
      written += columns[column][line];
      if (column + 1 < columns.size()) pad(written, start + column_width(kLeast[column], columns[column]));
    }
    text += written + "\n";
  }
  return text;
}

std::string plan_notes(const DimValues& dims) {
  std::string text =
      "Note 1: use comma to enable multiple plans at the same time.\n"
      "  export ORTMODULE_MEMORY_OPT_CONFIG=<plan1 config>,<plan2 config>,...\n"
      "Note 2: saving is calculated based on the 1st batch symbolic dim values:\n";
  for (const auto& [name, value] : dims) text += concat("  ", name, "=", value, ",\n");
  return text;
}

}  // namespace lowtide
