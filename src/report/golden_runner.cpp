// Runs the golden files of the memory optimizer (passes/golden.h): a training graph and a request in, candidates,
// warnings and the rewritten graph out.
//
// Behind a case's title stands, in brackets and separated by ';', what is asked for: a configuration
// ("FastGelu+:1:12"), "level=1", "probe=0:1", "pure=aten::NAME", "no default_rematerialisation", "no casts". Every
// candidate is printed; those in force have a star. "tables b=2,s=8" prints what users are told at these dims in place
// of candidates and graph.
#include <sstream>

#include "base/check.h"
#include "base/text.h"
#include "emit/plan.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "ir/verify.h"
#include "ops/rule.h"
#include "passes/golden.h"
#include "report/clusters.h"
#include "report/config.h"
#include "report/insight.h"

namespace lowtide {
namespace {

constexpr std::string_view kTables = "tables ";

MemoryOptions options_of(const std::string& text) {
  MemoryOptions options;
  std::string config;
  int level = 0;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ';');) {
    part.erase(0, part.find_first_not_of(' '));
    if (part.starts_with("level=")) {
      level = std::stoi(part.substr(6));
    } else if (part.starts_with("probe=")) {
      options.probe = parse_probe_config(part.substr(6));
    } else if (part.starts_with(kTables)) {
      continue;
    } else if (part.starts_with("pure=")) {
      options.pure_calls.insert(part.substr(5));
    } else if (part == "no default_rematerialisation") {
      options.disabled.push_back(part.substr(3));
    } else if (part == "no casts") {
      options.cast_again = false;
    } else {
      config = part;
    }
  }
  ask(options, level, config);
  return options;
}

// "tables b=2,s=8" → the dims; none: the case is about the graph.
std::optional<DimValues> tables_of(const std::string& options) {
  const size_t begin = options.find(kTables);
  if (begin == std::string::npos) return std::nullopt;
  DimValues dims;
  std::istringstream parts(options.substr(begin + kTables.size(), options.find(';', begin) - begin - kTables.size()));
  for (std::string part; std::getline(parts, part, ',');)
    dims[part.substr(0, part.find('='))] = std::stoi(part.substr(part.find('=') + 1));
  return dims;
}

std::string tables(const MemoryOptimizer& optimizer, const Selection& selection, const DimValues& dims) {
  return concat(plan_row_lines(plan_rows(optimizer, selection, dims)), insight_summary(optimizer, selection, {}),
                optimizer_summary(optimizer, selection));
}

std::string result_of(const std::string& input, const std::string& options, const std::string&) {
  const Graph graph = parse(input);
  verify(graph);
  verify_types(graph);
  const PlanResult planned = plan(graph, {});
  const MemoryOptimizer optimizer(graph, planned, options_of(options));
  const Selection selection = select(optimizer);
  if (const std::optional<DimValues> dims = tables_of(options)) return tables(optimizer, selection, *dims);
  std::string text;
  for (size_t i = 0; i < optimizer.candidates().size(); ++i) {
    const Candidate& candidate = optimizer.candidates()[i];
    const bool chosen =
        std::find(selection.chosen.begin(), selection.chosen.end(), static_cast<int32_t>(i)) != selection.chosen.end();
    text += concat(chosen ? "// * " : "//   ", candidate.strategy->name, " ", cluster_of(graph, candidate), " of %",
                   graph.value(candidate.outputs[0].value).name, " saves ", candidate.saving);
    if (!candidate.kept.empty())
      text += concat(", keeps ", join(candidate.kept, ", ",
                                      [&](std::ostream& out, ValueId v) { out << "%" << graph.value(v).name; }));
    if (candidate.layer >= 0)
      text += concat(" in ", optimizer.context().layers.layers[static_cast<size_t>(candidate.layer)].path);
    text += "\n";
  }
  for (const RequestOutcome& outcome : selection.outcomes)
    text += concat("// ", to_string(outcome.request), ": found ", outcome.found, ", applied ", outcome.applied, "\n");
  for (const std::string& warning : selection.warnings) text += concat("// warning: ", warning, "\n");
  const Graph result = optimizer.apply(selection.chosen);
  verify(result);
  verify_types(result);
  // What is planned afterwards holds exactly what the candidates say.
  Dim expected = optimizer.context().stash.total_bytes();
  for (int32_t index : selection.chosen)
    expected = expected - optimizer.candidates()[static_cast<size_t>(index)].saving;
  const PlanResult again = plan(result, {});
  const Dim left = StashAnalysis(result, again).total_bytes();
  text += concat("// stashed: ", left, left == expected ? "" : concat(", the candidates say ", expected), "\n");
  const std::string after = print(result);
  return text + (after == print(graph) ? "unchanged\n" : after);
}

}  // namespace
}  // namespace lowtide

int main(int count, char** arguments) { return lowtide::run_goldens(count, arguments, lowtide::result_of); }
