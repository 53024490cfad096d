// Pointwise loops: y = f(operands), broadcast, through buffers of one run.
#pragma once

#include "kernels/reference/elements.h"
#include "kernels/reference/states.h"

namespace lowtide::reference {

// run(f, values, result, n) over the runs of operands inputs[0], inputs[1], …, read as `From`, and of the output,
// written as `To`. Compiled once for all ops: what walks and converts is a hundred times as long as what an op does.
template <class To, class From, size_t N>
KernelStatus map_runs(const KernelCall& call, const Mapped<N>& runs, const void* f,
                      void (*run)(const void* f, const From (*values)[kRun], To* result, int64_t n)) {
  const TensorRef& y = call.outputs[0];
  runs.for_each([&](int64_t, const auto& offsets, const auto& steps, int64_t n) {
    From values[N][kRun];
    To result[kRun];
    for (size_t t = 0; t < N; ++t) load(call.inputs[t], offsets[t], steps[t], n, values[t]);
    run(f, values, result, n);
    store(y, offsets[N], steps[N], n, result);
  });
  return nullptr;
}

// y[i] = f(x[i], …)
template <class To, class From, size_t N, class F>
KernelStatus map(const KernelCall& call, const Mapped<N>& runs, const F& f) {
  return map_runs<To, From, N>(call, runs, &f,
                               [](const void* function, const From(*values)[kRun], To* result, int64_t n) {
                                 const F& of = *static_cast<const F*>(function);
                                 for (int64_t i = 0; i < n; ++i) {
                                   if constexpr (N == 1) {
                                     result[i] = of(values[0][i]);
                                   } else {
                                     result[i] = of(values[0][i], values[1][i]);
                                   }
                                 }
                               });
}

template <class F>
KernelStatus map_floats(const KernelCall& call, const Unary& runs, F f) {
  return map<double, double, 1>(call, runs, f);
}
template <class F>
KernelStatus map_two_floats(const KernelCall& call, const Binary& runs, F f) {
  return map<double, double, 2>(call, runs, f);
}

}  // namespace lowtide::reference
