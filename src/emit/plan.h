// A graph (forward or training) → a Program: order, storage of every value, kernels, steps.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "emit/row_loop.h"
#include "ir/graph.h"
#include "kernels/kernel.h"
#include "program/program.h"
#include "schedule/late_reductions.h"

namespace lowtide {

struct PlanOptions {
  std::vector<std::string> disabled_kernels;  // kernel names or providers
  bool list_places = false;                   // fill PlanResult::places
  // Backward is cut where it has made so many bytes of gradients since the cut before, and hands them out there.
  // What is less than a first bucket makes no last one.
  int64_t first_bucket_bytes = int64_t{1} << 20;
  int64_t bucket_bytes = int64_t{25} << 20;
  // Runs of steps that go by blocks of rows, in order; Error(kInvalidGraph) for one that cannot.
  std::vector<RowBlocks> row_blocks = {};
  // Other reductions are waited for where they stand.
  std::vector<LateWait> late_waits = {};
};

// Where and when a value can be seen: its bytes are there before step `step`, and the next steps may write over them.
struct ValuePlace {
  ValueId value;
  int32_t operand = 0;
  int32_t step = 0;    // of the region's end: after the last one
  int32_t region = 0;  // that makes it
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
  std::vector<int32_t> value_buffers;   // by graph value: the Program's buffer that holds its bytes; -1: none
  std::vector<int32_t> step_positions;  // by step: the place in the graph's order of the node that it serves
  // By graph value: the operands of its node whose bytes it may take where nobody reads them later, best first.
  std::vector<std::vector<ValueId>> may_take;
  // Operands and buffers of the program as symbolic sizes.
  std::vector<PlacedOperand> operands;
  std::vector<Dim> buffer_numel;
  std::vector<ValuePlace> places;  // in order of steps, views too; inputs not. Only if asked for
};

// Requires: a verified graph of computing ops, views, calls and YieldOp. Where no kernel takes a node:
// Error(kUnsupported) with the reasons.
PlanResult plan(const Graph& graph, const PlanOptions& options = {});

}  // namespace lowtide
