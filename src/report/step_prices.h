// What each step of a plan is predicted to take, to be laid beside a trace of it.
#pragma once

#include <span>
#include <vector>

#include "bind/binding.h"
#include "memory/prices.h"

namespace lowtide {

struct StepPrice {
  int32_t step = 0;
  Op op{};  // of the kernel: of a copy that the plan puts before a kernel, Copy
  KernelClass kernels = KernelClass::kFree;
  DType dtype = DType::kF32;
  CostAt cost;
  double milliseconds = 0;
};

// In the order of steps; those that run no kernel and call nothing have no row. The program is the graph's, the binding
// the program's at `dims`, `step_positions` the plan's (PlanResult).
std::vector<StepPrice> step_prices(const Graph& graph, const Program& program, const Binding& binding,
                                   std::span<const int32_t> step_positions, const Prices& prices,
                                   const DimValues& dims);

}  // namespace lowtide
