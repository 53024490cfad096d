// Pointwise loops: y = f(operands), broadcast, through buffers of one run.
#pragma once

#include <functional>

#include "kernels/reference/elements.h"
#include "kernels/walk.h"

namespace lowtide::reference {

// run(values, result, n) over the runs of operands inputs[0], inputs[1], …, read as `From`, and of the output, written
// as `To`. Compiled once for all ops: what walks and converts is a hundred times as long as what an op does.
template <class To, class From, size_t N>
KernelStatus map_runs(const KernelCall& call, const std::function<void(const From (*)[kRun], To*, int64_t)>& run) {
  const TensorRef& y = call.outputs[0];
  std::array<Strides, N + 1> strides;
  for (size_t t = 0; t < N; ++t) strides[t] = broadcast_strides(call.inputs[t], y);
  strides[N] = strides_of(y);
  for_each_run<N + 1>(y, strides, kRun, [&](int64_t, const auto& offsets, const auto& steps, int64_t n) {
    From values[N][kRun];
    To result[kRun];
    for (size_t t = 0; t < N; ++t) load(call.inputs[t], offsets[t], steps[t], n, values[t]);
    run(values, result, n);
    store(y, offsets[N], steps[N], n, result);
  });
  return nullptr;
}

// y[i] = f(x[i], …)
template <class To, class From, size_t N, class F>
KernelStatus map(const KernelCall& call, F f) {
  return map_runs<To, From, N>(call, [&f](const From(*values)[kRun], To* result, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      if constexpr (N == 1) {
        result[i] = f(values[0][i]);
      } else {
        result[i] = f(values[0][i], values[1][i]);
      }
    }
  });
}

template <class F>
KernelStatus map_floats(const KernelCall& call, F f) {
  return map<double, double, 1>(call, f);
}
template <class F>
KernelStatus map_two_floats(const KernelCall& call, F f) {
  return map<double, double, 2>(call, f);
}

}  // namespace lowtide::reference
