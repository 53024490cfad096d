// A graph (forward or training) → a Program: order, storage of every value, kernels, steps.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "kernels/kernel.h"
#include "program/program.h"

namespace lowtide {

struct PlanOptions {
  std::vector<std::string> disabled_kernels;  // kernel names or providers
};

// Why each node runs on the kernel it runs on.
struct KernelChoice {
  std::string node;
  std::string kernel;
  std::vector<std::string> refusals;  // "blas.gemm: operands are f64"
};

struct PlanResult {
  Program program;
  std::vector<KernelChoice> choices;
  std::vector<int32_t> value_buffers;  // by graph value: the Program's buffer that holds its bytes; -1: none
};

// Requires: a verified graph of computing ops, views, calls and YieldOp. Where no kernel takes a node:
// Error(kUnsupported) with the reasons.
PlanResult plan(const Graph& graph, const PlanOptions& options = {});

}  // namespace lowtide
