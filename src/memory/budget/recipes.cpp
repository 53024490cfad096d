#include "memory/budget/recipes.h"

#include <map>

#include "memory/compress/compress.h"

namespace lowtide {

std::vector<Candidate> recipes_of(const StepModel& model, const Kept& kept, const MemoryContext& context,
                                  const StashAnalysis& stash) {
  const Graph& graph = context.graph;
  ValueRanges ranges(graph);
  std::map<int32_t, Candidate> again, packed;  // by position
  std::vector<ValueId> instead;
  const auto recipe_in = [&](std::map<int32_t, Candidate>& recipes, const ModelValue& value) -> Candidate& {
    Candidate& recipe = recipes[value.producer];
    recipe.entry = graph.value(value.value).producer;
    recipe.layer = context.layers.find(recipe.entry);
    return recipe;
  };
  for (size_t i = 0; i < model.values.size(); ++i) {
    const ModelValue& value = model.values[i];
    if (!value.is_optional) continue;
    const bool is_stash = value.first_in_backward >= 0;
    if (kept[i] != Keep::kAgain && (!is_stash || value.is_default)) instead.push_back(value.value);
    if (kept[i] == Keep::kPacked) {
      Candidate& recipe = recipe_in(packed, value);
      recipe.strategy = &strategy::compress;
      add_packed(recipe, graph, value.value, narrower(graph, ranges, value.value).value());
    } else if (kept[i] == Keep::kAgain && is_stash) {
      Candidate& recipe = recipe_in(again, value);
      recipe.strategy = value.is_default ? &strategy::default_rematerialisation : &strategy::recompute;
      recipe.nodes = {recipe.entry};
      const Dim bytes = stash.bytes(value.value);
      recipe.outputs.push_back({value.value, graph.value(value.value).output_index, bytes, 1});
      recipe.saving = recipe.saving + bytes;
    }
  }
  std::vector<Candidate> recipes;
  for (std::map<int32_t, Candidate>* each : {&again, &packed})
    for (auto& [position, recipe] : *each) recipes.push_back(std::move(recipe));
  if (!instead.empty()) {
    Candidate candidate;
    candidate.strategy = &strategy::recompute_with_compromise;
    candidate.entry = graph.value(instead.front()).producer;
    for (ValueId value : instead) candidate.kept_bytes = candidate.kept_bytes + stash.bytes(value);
    candidate.kept = std::move(instead);
    recipes.push_back(std::move(candidate));
  }
  return recipes;
}

}  // namespace lowtide
