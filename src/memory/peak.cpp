#include "memory/peak.h"

#include "base/check.h"
#include "bind/binding.h"
#include "bind/planned_sizes.h"

namespace lowtide {

DimValues named_sizes(const Program& program, std::span<const int64_t> symbol_values) {
  DimValues sizes;
  const std::vector<int64_t> values = planned_sizes(program, symbol_values);
  for (size_t i = 0; i < program.symbols.size(); ++i) sizes[program.symbols[i].name] = values[i];
  for (size_t i = 0; i < program.step_symbols.size(); ++i)
    sizes[program.step_symbols[i].name] = values[program.symbols.size() + i];
  return sizes;
}

MemoryReport planned_memory(const Program& program, std::span<const int64_t> symbol_values, bool guard) {
  return bind_program(program, {symbol_values.begin(), symbol_values.end()}, program.pack_order, guard)->report;
}

MemoryReport planned_memory(const Graph& graph, const PlanOptions& options, std::span<const int64_t> symbol_values,
                            bool guard) {
  return planned_memory(plan(graph, options).program, symbol_values, guard);
}

std::vector<std::optional<MemoryReport>> planned_memory_at(const Program& program, std::span<const DimValues> sizes) {
  std::vector<std::optional<MemoryReport>> reports;
  std::vector<int32_t> order = program.pack_order;
  for (const DimValues& dims : sizes) {
    std::vector<int64_t> values;
    for (const SymbolSource& symbol : program.symbols) values.push_back(dims.at(symbol.name));
    reports.emplace_back();
    try {
      std::unique_ptr<Binding> binding = bind_program(program, std::move(values), order, false);
      order = std::move(binding->pack_order);
      reports.back() = binding->report;
    } catch (const Error&) {
      continue;  // as a call of these sizes would be refused
    }
  }
  return reports;
}

}  // namespace lowtide
