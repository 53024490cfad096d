#include "memory/budget/recipes.h"

#include <map>

namespace lowtide {

std::vector<Candidate> recipes_of(const StepModel& model, const Kept& kept, const MemoryContext& context,
                                  const StashAnalysis& stash) {
  std::map<int32_t, Candidate> by_position;
  std::vector<ValueId> instead;
  for (size_t i = 0; i < model.values.size(); ++i) {
    const ModelValue& value = model.values[i];
    if (!value.is_optional) continue;
    const bool is_stash = value.first_in_backward >= 0;
    if (kept[i] && (!is_stash || value.is_default)) instead.push_back(value.value);
    if (kept[i] || !is_stash) continue;
    const NodeId producer = context.graph.value(value.value).producer;
    Candidate& candidate = by_position[value.producer];
    candidate.strategy = value.is_default ? &strategy::default_rematerialisation : &strategy::recompute;
    candidate.entry = producer;
    candidate.nodes = {producer};
    candidate.layer = context.layers.find(producer);
    const Dim bytes = stash.bytes(value.value);
    candidate.outputs.push_back({value.value, context.graph.value(value.value).output_index, bytes, 1});
    candidate.saving = candidate.saving + bytes;
  }
  std::vector<Candidate> recipes;
  for (auto& [position, candidate] : by_position) recipes.push_back(std::move(candidate));
  if (!instead.empty()) {
    Candidate candidate;
    candidate.strategy = &strategy::recompute_with_compromise;
    candidate.entry = context.graph.value(instead.front()).producer;
    for (ValueId value : instead) candidate.kept_bytes = candidate.kept_bytes + stash.bytes(value);
    candidate.kept = std::move(instead);
    recipes.push_back(std::move(candidate));
  }
  return recipes;
}

}  // namespace lowtide
