// How a kernel gets a state: it is a function of a call and of a struct that is made once, of the bound call.
//   struct ClipBounds {
//     explicit ClipBounds(const BoundCall& call) : low(call.attrs->f("min")), high(call.attrs->f("max")) {}
//     double low, high;
//   };
//   KernelStatus clip(const KernelCall& call, const ClipBounds& bounds);
// or of a struct for each operand, inputs first:
//   struct Part {
//     Part(const BoundCall& call, size_t operand);
//   };
//   KernelStatus concat(const KernelCall& call, std::span<const Part> parts);
// Prepared<clip> has the functions that a Kernel stands for. The struct keeps nothing of the call: neither its
// attributes nor its operands are there when the kernel runs.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>
#include <vector>

#include "kernels/kernel.h"

namespace lowtide {

// States lie on multiples of this.
constexpr size_t kStateAlignment = 8;

template <class State>
constexpr bool kMayBeState =
    std::is_trivially_copyable_v<State> && std::is_trivially_destructible_v<State> && alignof(State) <= kStateAlignment;

template <auto function, class Type = decltype(function)>
struct Prepared;

template <auto function>
struct Prepared<function, KernelStatus (*)(const KernelCall&)> {
  static constexpr KernelFunction kRun = function;
  static constexpr PrepareFunction kPrepare = nullptr;
  static constexpr size_t kStateBytes = 0, kStateBytesEach = 0;
};

template <auto function, class State>
struct Prepared<function, KernelStatus (*)(const KernelCall&, const State&)> {
  static_assert(kMayBeState<State>);
  static KernelStatus run(const KernelCall& call) { return function(call, *static_cast<const State*>(call.state)); }
  static void prepare(const BoundCall& call, void* state) { new (state) State(call); }
  static constexpr KernelFunction kRun = run;
  static constexpr PrepareFunction kPrepare = prepare;
  static constexpr size_t kStateBytes = sizeof(State), kStateBytesEach = 0;
};

template <auto function, class Each>
struct Prepared<function, KernelStatus (*)(const KernelCall&, std::span<const Each>)> {
  static_assert(kMayBeState<Each>);
  static KernelStatus run(const KernelCall& call) {
    const size_t operands = call.inputs.size() + call.outputs.size();
    return function(call, std::span(static_cast<const Each*>(call.state), operands));
  }
  static void prepare(const BoundCall& call, void* state) {
    const size_t operands = call.inputs.size() + call.outputs.size();
    for (size_t i = 0; i < operands; ++i) new (static_cast<Each*>(state) + i) Each(call, i);
  }
  static constexpr KernelFunction kRun = run;
  static constexpr PrepareFunction kPrepare = prepare;
  static constexpr size_t kStateBytes = 0, kStateBytesEach = sizeof(Each);
};

// Runs a kernel once, outside of a plan.
inline KernelStatus run_once(const Kernel& kernel, BoundCall call) {
  constexpr size_t kUsual = 2048;
  alignas(kStateAlignment) std::byte usual[kUsual];
  const size_t bytes = state_bytes_of(kernel, call);
  std::vector<uint64_t> large(bytes > kUsual ? (bytes + 7) / 8 : 0);
  if (kernel.prepare != nullptr) {
    void* state = bytes > kUsual ? static_cast<void*>(large.data()) : usual;
    kernel.prepare(call, state);
    call.state = state;
  }
  return kernel.run(call);
}

}  // namespace lowtide
