#include "memory/prices.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace lowtide {

static constexpr double kFree = std::numeric_limits<double>::infinity();

Prices::Prices() : near_bytes(4e6), far_bytes(64e6) {
#define LT_RATES(kernels, dtype, call_us, gflops, near_gb, far_gb, drawn) \
  rates[{KernelClass::k##kernels, DType::k##dtype}] = {call_us, gflops, near_gb, far_gb, drawn};
#include "memory/shipped_prices.def"
}

double far_share(const Prices& prices, double bytes) {
  if (bytes <= prices.near_bytes) return 0;
  if (bytes >= prices.far_bytes) return 1;
  return std::log(bytes / prices.near_bytes) / std::log(prices.far_bytes / prices.near_bytes);
}

static std::optional<DType> first_dtype(const Graph& graph, const std::vector<ValueId>& values) {
  for (ValueId value : values)
    if (value) return graph.type(value).dtype;
  return std::nullopt;
}

KernelClass priced_kernels(const Node& node) {
  const KernelClass kernels = info(node.op).kernels;
  const bool is_gradient = kernels == KernelClass::kConvolutionGrad;
  if ((kernels != KernelClass::kConvolution && !is_gradient) || !node.attrs.has("kernel_shape") ||
      node.attrs.i("group") != 1)
    return kernels;
  const std::vector<Dim>& window = node.attrs.ints("kernel_shape");
  if (!std::all_of(window.begin(), window.end(), [](const Dim& dim) { return dim.is(1); })) return kernels;
  return is_gradient ? KernelClass::kPlaceConvolutionGrad : KernelClass::kPlaceConvolution;
}

DType priced_dtype(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const std::optional<DType> made = first_dtype(graph, node.outputs), read = first_dtype(graph, node.inputs);
  if (!made || !read) return made ? *made : read.value_or(DType::kF32);
  if (*made == DType::kBool) return *read;
  const bool is_narrower = is_float(*made) && is_float(*read) && size_bytes(*read) < size_bytes(*made);
  return is_narrower ? *read : *made;
}

double Prices::milliseconds(KernelClass kernels, DType dtype, const CostAt& cost) const {
  if (kernels == KernelClass::kFree) return 0;
  auto at = rates.find({kernels, dtype});
  if (at == rates.end()) at = rates.find({kernels, DType::kF32});
  LT_CHECK(at != rates.end(), "no rates for ", name(kernels));
  const Rates& rate = at->second;
  const double far = far_share(*this, cost.bytes);
  const double ns = cost.flops / rate.gflops + cost.bytes * ((1 - far) / rate.near_gb + far / rate.far_gb);
  return 1e-3 * (rate.call_us + 1e-3 * ns + cost.drawn / rate.drawn_per_us);
}

// Of what comes in for an output that has a gradient besides, where the caller mostly sends none: the logits beside the
// loss. Then the plan's step, which has the sum in the other operand's bytes, is left out.
static bool adds_incoming_gradient(const Graph& graph, const Node& node) {
  if (!has_trait(node.op, Trait::kZeroIsNeutral) || !has_trait(node.op, Trait::kCommutative)) return false;
  return std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) {
    const NodeId producer = graph.value(input).producer;
    return producer && is_yield(graph.node(producer).op);
  });
}

// As gloo between two processes of one machine: a message by itself, and the bytes of all parts and wholes.
static constexpr double kMessageMilliseconds = 0.36, kBytesAMillisecond = 3e6;

double Prices::milliseconds(const Graph& graph, NodeId node, const DimValues& dims) const {
  if (is_collective(graph.node(node).op))
    return kMessageMilliseconds + cost_at(graph, node, dims).bytes / kBytesAMillisecond;
  const KernelClass kernels = priced_kernels(graph.node(node));
  if (kernels == KernelClass::kFree || adds_incoming_gradient(graph, graph.node(node))) return 0;
  return milliseconds(kernels, priced_dtype(graph, node), cost_at(graph, node, dims));
}

double predicted_milliseconds(const Graph& graph, const Prices& prices, const DimValues& dims) {
  double sum = 0;
  for (NodeId node : graph.order()) sum += prices.milliseconds(graph, node, dims);
  return sum;
}

}  // namespace lowtide
