// What an observed session knows of its values: which of the captured graph's they stand for, and when they can be
// seen.
#pragma once

#include <string>
#include <vector>

#include "emit/plan.h"
#include "ir/graph.h"
#include "runtime/probe.h"

namespace lowtide {

// A value of the captured graph, and the values of the training graph that are it and its gradient: names, empty where
// no step makes one (a fused op's inside, a view's copy that nobody reads).
struct MappedValue {
  std::string captured;
  std::string value;
  std::string gradient;
};

// What stands for the captured values in the forward graph that the gradient is built of. The gradient of a value is
// that of its stand-in only where all its readers read it there: not where several captured values became one (but for
// the first of those that are one by lowering, as around a dropout of nothing), or where some read the bytes past it,
// in another shape.
struct ForwardValues {
  std::vector<ValueId> values;       // by captured value
  std::vector<bool> share_gradient;  // by captured value
};
// `lowered`: LoweringReport::values; `replacements`: of the passes over the forward graph.
ForwardValues find_forward_values(const Graph& forward, const std::vector<ValueId>& lowered,
                                  const Replacements& replacements);

// Of an observed session.
struct Observation {
  Graph functional;  // as captured, after functionalise
  Graph training;    // what is planned
  std::vector<MappedValue> value_map;
  std::vector<Probe> probes;
};

// For every value of `functional`, the captured graph after functionalise. `graph`: the planned one; `gradients`:
// GradientGraph::gradients, empty without a backward; `replacements`: of all passes.
std::vector<MappedValue> value_map(const Graph& functional, const ForwardValues& forward_values,
                                   const std::vector<ValueId>& gradients, const Replacements& replacements,
                                   const Graph& graph, const std::vector<ValuePlace>& places);

std::vector<Probe> probes(const Graph& graph, const std::vector<ValuePlace>& places);

}  // namespace lowtide
