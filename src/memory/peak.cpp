#include "memory/peak.h"

#include "bind/binding.h"

namespace lowtide {

MemoryReport planned_memory(const Program& program, std::span<const int64_t> symbol_values, bool guard) {
  return bind_program(program, {symbol_values.begin(), symbol_values.end()}, program.pack_order, guard)->report;
}

MemoryReport planned_memory(const Graph& graph, const PlanOptions& options, std::span<const int64_t> symbol_values,
                            bool guard) {
  return planned_memory(plan(graph, options).program, symbol_values, guard);
}

}  // namespace lowtide
