// How a kernel gets a state: it is a function of a call and of a struct that is made once, of the bound call.
//   struct ClipBounds {
//     explicit ClipBounds(const BoundCall& call) : low(call.attrs->f("min")), high(call.attrs->f("max")) {}
//     double low, high;
//   };
//   KernelStatus clip(const KernelCall& call, const ClipBounds& bounds);
// Prepared<clip> has the functions that a Kernel stands for. The struct keeps nothing of the call: neither its
// attributes nor its operands are there when the kernel runs.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>

#include "kernels/kernel.h"

namespace lowtide {

template <auto function, class Type = decltype(function)>
struct Prepared;

template <auto function>
struct Prepared<function, KernelStatus (*)(const KernelCall&)> {
  static constexpr KernelFunction kRun = function;
  static constexpr PrepareFunction kPrepare = nullptr;
  static constexpr size_t kStateBytes = 0;
};

template <auto function, class State>
struct Prepared<function, KernelStatus (*)(const KernelCall&, const State&)> {
  static_assert(sizeof(State) <= kMostStateBytes && std::is_trivially_copyable_v<State> &&
                std::is_trivially_destructible_v<State>);
  static KernelStatus run(const KernelCall& call) { return function(call, *static_cast<const State*>(call.state)); }
  static void prepare(const BoundCall& call, void* state) { new (state) State(call); }
  static constexpr KernelFunction kRun = run;
  static constexpr PrepareFunction kPrepare = prepare;
  static constexpr size_t kStateBytes = sizeof(State);
};

// Runs a kernel once, outside of a plan.
inline KernelStatus run_once(const Kernel& kernel, BoundCall call) {
  alignas(64) std::byte state[kMostStateBytes];
  if (kernel.prepare != nullptr) {
    kernel.prepare(call, state);
    call.state = state;
  }
  return kernel.run(call);
}

}  // namespace lowtide
