#include "passes/pass.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "ir/print.h"
#include "ir/verify.h"
#include "ops/rule.h"

namespace lowtide {

static void check_names(std::span<const Pass> passes, const PassOptions& options) {
  const auto check = [&](const std::string& name) {
    const bool is_run = std::any_of(passes.begin(), passes.end(), [&](const Pass& pass) { return pass.name == name; });
    LT_USER_CHECK(ErrorKind::kInvalidArgument, is_run || find_pass(name), "no pass is called '", name, "'; there are ",
                  join(all_passes(), ", ", [](auto& out, const Pass& pass) { out << pass.name; }));
  };
  for (const std::string& name : options.disabled) check(name);
  if (!options.stop_after.empty()) check(options.stop_after);
}

// A graph that a pass broke is our mistake, never the user's.
static void check_result(const Graph& graph, std::string_view pass, bool types) {
  try {
    verify(graph);
    if (types) verify_types(graph);
  } catch (const Error& error) {
    LT_FAIL("after the pass ", pass, ": ", error.what());
  }
}

std::vector<PassRun> run_passes(Graph& graph, std::span<const Pass> passes, const PassOptions& options) {
  check_names(passes, options);
  std::vector<PassRun> runs;
  for (const Pass& pass : passes) {
    if (std::find(options.disabled.begin(), options.disabled.end(), pass.name) != options.disabled.end()) continue;
    const std::string before = options.check_claims ? print(graph) : std::string();
    const auto start = std::chrono::steady_clock::now();
    const bool changed = pass.run != nullptr ? pass.run(graph) : pass.run_with(graph, options);
    const auto time = std::chrono::steady_clock::now() - start;
    runs.push_back({pass.name, changed, std::chrono::duration_cast<std::chrono::nanoseconds>(time).count()});
    if (options.check_claims)
      LT_CHECK((print(graph) != before) == changed, "the pass ", pass.name, " claims ",
               changed ? "a change" : "no change", ", and the print ", changed ? "is the same" : "differs");
    if (changed) {
      check_result(graph, pass.name, options.verify_types);
      if (options.after_change) options.after_change(pass.name, graph);
    }
    if (pass.name == options.stop_after) break;
  }
  return runs;
}

}  // namespace lowtide
