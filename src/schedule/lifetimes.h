// Who owns the bytes of each value of a graph, and from which to which node they are needed: what a graph and an order
// of its nodes tell, before any kernel is chosen.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/graph.h"

namespace lowtide {

// Where the bytes are, as far as the graph tells.
enum class Holder : uint8_t {
  kCaller,    // an input's, or an incoming gradient's: there before the step and after it
  kNowhere,   // a number repeated everywhere, an autograd context: no bytes that are planned
  kOutput,    // a module output's: a block of its own
  kGradient,  // handed over by backward
  kArena,     // all others
};

// Positions are indices into the order. The interval is closed.
struct Life {
  Holder holder = Holder::kArena;
  int32_t first = 0;  // of the node that makes the bytes; -1: they are there from the start
  int32_t last = -1;  // of the last node that reads them, at least `first` where a node makes them; the length of the
                      // order: they outlive it (module outputs, gradients)
  bool is_taken = false;   // the last node that reads them writes its result there: it is not live beside the result
  bool is_output = false;  // a value that shows them is an output of the module, whoever holds the bytes
};

struct Lifetimes {
  std::vector<ValueId> owners;  // by value: the value whose bytes it shows
  std::vector<Life> lives;      // by value; that of an owner is of all values which show its bytes

  ValueId owner(ValueId value) const { return owners[value.at()]; }
  const Life& of(ValueId value) const { return lives[owner(value).at()]; }
};

// By value, the value whose bytes it shows. A view shows its operand's; with a plan's `buffers` (a number per value,
// -1: none), only where both have the same one: the plan may have given it bytes of its own.
std::vector<ValueId> find_owners(const Graph& graph, std::span<const int32_t> buffers = {});

// By value, the operand of its node whose bytes it takes over in the plan that has these buffers (a number per value,
// -1: none); none where it has bytes of its own.
std::vector<ValueId> find_takeovers(const Graph& graph, std::span<const int32_t> buffers);

// Of all values, where the nodes run in `order`, a permutation of graph.order(). What forward writes back (updates)
// lives to the end of forward. Inspect nodes that look at one value run once, with the first of them. `takeovers`: of a
// plan of the graph in another order, or empty; they hold wherever the operand's last reader is still the node.
Lifetimes find_lifetimes(const Graph& graph, std::span<const NodeId> order, std::span<const ValueId> takeovers = {});

// The outputs of the module: what YieldOp hands out, or, in a graph without backward, the outputs themselves.
std::vector<ValueId> module_outputs(const Graph& graph);

}  // namespace lowtide
