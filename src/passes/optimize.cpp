#include "passes/optimize.h"

#include <algorithm>

#include "passes/cse.h"
#include "passes/dce.h"
#include "passes/fold.h"

namespace lowtide {

namespace {

constexpr Pass kForward[] = {
    {"fold", fold},
    {"cse", cse},
    {"dce", dce},
};

constexpr Pass kTraining[] = {
    {"fold", fold},
    {"cse", cse},
    {"dce", dce},
};

constexpr Pass kAll[] = {
    {"fold", fold},
    {"cse", cse},
    {"dce", dce},
};

}  // namespace

std::span<const Pass> all_passes() { return kAll; }

const Pass* find_pass(std::string_view name) {
  const auto at = std::find_if(std::begin(kAll), std::end(kAll), [&](const Pass& pass) { return pass.name == name; });
  return at == std::end(kAll) ? nullptr : at;
}

void optimize_forward(Graph& graph, const PassOptions& options) { run_passes(graph, kForward, options); }

void optimize_training(Graph& graph, const PassOptions& options) { run_passes(graph, kTraining, options); }

}  // namespace lowtide
