// Which integers a value can hold, as far as the graph alone proves it.
#pragma once

#include <unordered_map>

#include "ir/graph.h"

namespace lowtide {

// Answers for values of one graph, remembered; the graph must not change meanwhile.
class ValueRanges {
 public:
  explicit ValueRanges(const Graph& graph) : graph_(graph) {}

  // A closed interval that holds every element of an integer or bool value at every size and for every input, and the
  // arithmetic never leaves: what might wrap around, what comes from a graph input, a call or floating point has the
  // full range of its dtype.
  DimRange range(ValueId value);

 private:
  DimRange find(const Value& value);

  const Graph& graph_;
  std::unordered_map<ValueId, DimRange> known_;
  int depth_ = 0;
};

DimRange value_range(const Graph& graph, ValueId value);

// Everything that an integer dtype (or bool) can hold.
DimRange full_range(DType dtype);

}  // namespace lowtide
