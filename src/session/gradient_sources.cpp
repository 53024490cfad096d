#include "session/gradient_sources.h"

#include <algorithm>

namespace lowtide {

std::vector<std::vector<int>> gradient_sources(const Graph& training) {
  std::vector<std::vector<int>> result(training.inputs().size());
  for (const GraphOutput& output : training.outputs()) {
    if (output.kind != OutputKind::kGradient) continue;
    std::vector<int>& found = result[static_cast<size_t>(training.value(output.target).output_index)];
    std::vector<ValueId> pending{output.value};
    std::vector<bool> seen;
    while (!pending.empty()) {
      const ValueId id = pending.back();
      pending.pop_back();
      if (!id || (id.at() < seen.size() && seen[id.at()])) continue;
      if (id.at() >= seen.size()) seen.resize(id.at() + 1);
      seen[id.at()] = true;
      const Value& value = training.value(id);
      if (!value.producer) continue;
      const Node& node = training.node(value.producer);
      if (node.op == Op::kYieldOp)
        found.push_back(value.output_index);
      else
        pending.insert(pending.end(), node.inputs.begin(), node.inputs.end());
    }
    std::sort(found.begin(), found.end());
  }
  return result;
}

}  // namespace lowtide
