// What the memory optimizer is told to rewrite, so that a plan keeps what a choice in numbers keeps.
#pragma once

#include "memory/budget/model.h"

namespace lowtide {

// `model` is of the context's graph, with nothing made again, as is `stash`. For MemoryOptimizer::rewrite.
std::vector<Candidate> recipes_of(const StepModel& model, const Kept& kept, const MemoryContext& context,
                                  const StashAnalysis& stash);

}  // namespace lowtide
