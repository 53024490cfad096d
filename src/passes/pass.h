// Running passes: by name, timed, verified, one after another.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace lowtide {

struct PassOptions {
  std::vector<std::string> disabled;  // passes to leave out, for bisecting
  std::string stop_after;             // the last pass to run; empty: all
  bool verify_types = false;          // re-infer every type after each change (slow; tests and lowtide-opt)
  bool check_claims = false;          // compare prints: a pass that changes the graph must say so, and only then
  std::function<void(std::string_view pass, const Graph&)> after_change;  // dumps
  int cast_level = 1;                                                     // of propagate_casts
  std::vector<std::string> cast_allow;  // ops that propagate_casts may touch beside its level's
  bool label_sparsity = false;    // whether drop_unlabelled_rows does anything: it pays where few rows have labels
  bool padding_sparsity = false;  // whether it goes on through attention: it pays where masks hide many rows
};

// A pass edits the graph and says whether it changed anything.
struct Pass {
  std::string_view name;
  bool (*run)(Graph&) = nullptr;
  bool (*run_with)(Graph&, const PassOptions&) = nullptr;  // instead of `run`, where it has options
};

struct PassRun {
  std::string_view name;
  bool changed;
  int64_t time_ns;
};

// Runs the passes in order, and verifies the invariants after each that changed the graph: a broken one is an internal
// error that names the pass. A name in `options` that no pass has is Error(kInvalidArgument).
std::vector<PassRun> run_passes(Graph& graph, std::span<const Pass> passes, const PassOptions& options = {});

// Every pass there is, in the order of the pipelines.
std::span<const Pass> all_passes();
const Pass* find_pass(std::string_view name);

}  // namespace lowtide
