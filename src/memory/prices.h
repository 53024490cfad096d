// What running a node once takes on a machine, predicted from what it computes and moves.
//
//   µs a call + flops / rate + bytes / rate + random numbers / rate
//
// with rates of the class of kernels that the node runs on (opset/kernel_classes.def) and of its dtype. Bytes have
// two rates: a node that moves no more than `near_bytes` finds them in the caches, one of `far_bytes` or more in
// memory, and between them the rate changes with the logarithm. The sum, not the larger part: so the bytes of a matrix
// product are what small sizes cost it, since a product of M, N, K in relation to its flops moves 1/M + 1/N + 1/K.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "ops/rule.h"

namespace lowtide {

// Infinite: that part takes no time.
struct Rates {
  double call_us = 0;
  double gflops = 0;               // 1e9 flops a second
  double near_gb = 0, far_gb = 0;  // 1e9 bytes a second, far_gb <= near_gb
  double drawn_per_us = 0;         // random numbers
  friend bool operator==(const Rates&, const Rates&) = default;
};

// Times predicted at larger sizes are never shorter.
class Prices {
 public:
  using RatesByKernels = std::map<std::pair<KernelClass, DType>, Rates>;  // dtypes without a row are priced as f32

  Prices();  // those that are shipped, of the machine that shipped_prices.def names
  // Error(kInvalidArgument) that names the line, what is expected there and what is found.
  static Prices parse(std::string_view text);
  std::string text() const;  // parse(text()) gives the same

  // 0 for views, YieldOp and constants.
  double milliseconds(const Graph& graph, NodeId node, const DimValues& dims) const;
  double milliseconds(KernelClass kernels, DType dtype, const CostAt& cost) const;

  // The machine that they were measured on; empty and 0 for those that are shipped.
  std::string processor;
  int threads = 0;
  double near_bytes, far_bytes;
  RatesByKernels rates;

  friend bool operator==(const Prices&, const Prices&) = default;
};

// The share of `bytes` that come from memory.
double far_share(const Prices& prices, double bytes);

// The class whose rates price a node: the op's, of a convolution by its window.
KernelClass priced_kernels(const Node& node);

// The dtype whose rates price a node: of its first output; of its first operand where there is none, where that is of
// bools (a comparison takes as long as reading what it compares), and where of two dtypes of floats it has the narrower
// (the loss of bf16 logits is f32).
DType priced_dtype(const Graph& graph, NodeId node);

// Of a whole step.
double predicted_milliseconds(const Graph& graph, const Prices& prices, const DimValues& dims);

}  // namespace lowtide
