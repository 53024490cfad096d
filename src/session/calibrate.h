// What kernels take on this machine, measured.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "memory/fit_prices.h"

namespace lowtide {

struct CalibrationOptions {
  // Runs of each graph that are timed, and seconds after which no further one is begun; a graph runs twice in any case.
  int runs = 7;
  double seconds_a_graph = 2.5;
  // Called before each graph with how many are done and how many there are.
  std::function<void(size_t done, size_t all)> progress{};
};

// Times the steps of training steps of these graphs (calibration_graphs.h): of each the median over the runs.
// Before a run the caches are emptied, as in a model whose other layers pass between two uses of a weight. Kernels run
// as in training, on the threads of parallel_for.
std::vector<KernelTime> time_kernels(const std::vector<std::string>& graphs, const CalibrationOptions& options);

// Prices of this machine. Error(kUnsupported) without PyTorch's convolutions, which are what models would run.
Prices calibrate(const CalibrationOptions& options);

// Why these prices are not this machine's: another processor, another number of threads; empty where they are.
std::string tell_other_machine(const Prices& prices);

}  // namespace lowtide
