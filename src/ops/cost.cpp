// What a node computes and moves, as symbolic sizes and at given ones: one text for both.
#include "base/check.h"
#include "ops/rule.h"

namespace lowtide {

namespace {

struct SymbolicSizes {
  using Number = Dim;
  const Graph& graph;

  const Shape& shape(ValueId value) const { return graph.type(value).shape; }
  Dim number(const Dim& dim) const { return dim; }
  Dim quotient(const Dim& a, const Dim& b) const { return floordiv(a, b); }
  // As far as sizes can be compared.
  bool is_at_most(const Dim& a, const Dim& b) const { return range_of(b - a, graph.ranges()).low >= 0; }
};

struct GivenSizes {
  using Number = double;
  const Graph& graph;
  const DimValues& dims;

  std::vector<double> shape(ValueId value) const {
    std::vector<double> result;
    for (const Dim& dim : graph.type(value).shape) result.push_back(number(dim));
    return result;
  }
  double number(const Dim& dim) const {
    return static_cast<double>(dim.is_constant() ? dim.constant() : evaluate(dim, dims));
  }
  double quotient(double a, double b) const { return a / b; }
  bool is_at_most(double a, double b) const { return a <= b; }
};

template <class Sizes>
class Counter {
 public:
  using Number = typename Sizes::Number;

  Counter(const Graph& graph, const Node& node, const Sizes& sizes) : graph_(graph), node_(node), sizes_(sizes) {}

  CostOf<Number> count() const {
    const Number bytes = moved_bytes();
    switch (info(node_.op).category) {
      case OpCategory::kView:
      case OpCategory::kControl: break;
      case OpCategory::kPointwise:
      case OpCategory::kReduce: return {largest_numel(), bytes, 0};
      case OpCategory::kRandom: return {largest_numel(), bytes, numel_of(node_.outputs[0])};
      // Two passes over the rows or so: statistics, then the result.
      case OpCategory::kRow: return {Number(5) * largest_numel(), bytes, 0};
      case OpCategory::kGemm: return gemm(bytes);
      case OpCategory::kWindow: return {window_flops(), bytes, 0};
      case OpCategory::kIndex: return {0, gathered_bytes(bytes), 0};
      case OpCategory::kCreate: return {0, bytes, 0};
      case OpCategory::kCall: return {largest_numel(), bytes, 0};
    }
    if (!node_.body) return {};
    // A group computes what its body does, and moves only its own operands and outputs.
    CostOf<Number> all{.bytes = bytes};
    for (NodeId inner : node_.body->order()) {
      const CostOf<Number> one = Counter(*node_.body, node_.body->node(inner), with_graph(*node_.body)).count();
      all.flops = all.flops + one.flops;
      all.drawn = all.drawn + one.drawn;
    }
    return all;
  }

 private:
  Sizes with_graph(const Graph& graph) const {
    if constexpr (std::is_same_v<Sizes, SymbolicSizes>) {
      return {graph};
    } else {
      return {graph, sizes_.dims};
    }
  }
  Number numel_of(ValueId value) const {
    Number count = value ? 1 : 0;
    if (value)
      for (const auto& dim : sizes_.shape(value)) count = count * dim;
    return count;
  }

  Number bytes_of(ValueId value) const { return numel_of(value) * Number(size_bytes(graph_.type(value).dtype)); }

  Number moved_bytes() const {
    Number total = 0;
    for (const std::vector<ValueId>* values : {&node_.inputs, &node_.outputs})
      for (ValueId value : *values)
        if (value) total = total + bytes_of(value);
    return total;
  }

  // Of a table only the rows that are asked for are read; a gradient goes to their rows alone, in place where there is
  // something that it is added to.
  Number gathered_bytes(const Number& bytes) const {
    const bool gathers = node_.op == Op::kGather || node_.op == Op::kGatherElements || node_.op == Op::kGatherND;
    if (gathers) return bytes - bytes_of(node_.inputs[0]) + bytes_of(node_.outputs[0]);
    if (node_.op != Op::kGatherGrad) return bytes;
    const Number rows = Number(3) * bytes_of(node_.inputs[0]) + bytes_of(node_.inputs[1]);
    return node_.inputs.size() > 2 ? rows : rows + bytes_of(node_.outputs[0]);
  }

  // The elements of the largest operand or output.
  Number largest_numel() const {
    Number largest = 0;
    for (const std::vector<ValueId>* values : {&node_.inputs, &node_.outputs})
      for (ValueId value : *values) {
        if (!value) continue;
        const Number count = numel_of(value);
        if (sizes_.is_at_most(largest, count)) largest = count;
      }
    return largest;
  }

  // Of q k^T and p v: 2*B*H*S*T*(E + Ev) multiplications and additions; a number for each probability where some drop.
  CostOf<Number> attention(size_t first, const Number& bytes) const {
    const auto &q = sizes_.shape(node_.inputs[first]), &k = sizes_.shape(node_.inputs[first + 1]),
               &v = sizes_.shape(node_.inputs[first + 2]);
    const Number scores = q[0] * q[1] * q[2] * k[2];
    const Number flops = Number(2) * scores * (q[3] + v[3]);
    const Number drawn = node_.attrs.f("dropout") > 0 ? scores : Number(0);
    if (!node_.attrs.b("is_causal")) return {flops, bytes, drawn};
    return {sizes_.quotient(flops, 2), bytes, sizes_.quotient(drawn, 2)};
  }

  int64_t wanted(size_t output) const { return node_.outputs[output] ? 1 : 0; }
  // A loss of a linear layer has one product for the logits, where it makes them, and one for each of the gradients of
  // x and weight: each multiplies all elements of one operand by one dim of another.
  CostOf<Number> products(int64_t count, ValueId elements, ValueId other, size_t dim, const Number& bytes) const {
    const auto& sizes = sizes_.shape(other);
    return {Number(2 * count) * numel_of(elements) * sizes[dim], bytes, 0};
  }
  // Of every state, by all rows of the weight.
  CostOf<Number> recurrence_grad(const Number& bytes) const {
    return products(1, node_.inputs[0], node_.inputs[1], 0, bytes);
  }
  CostOf<Number> gemm(const Number& bytes) const {
    if (node_.op == Op::kAttention) return attention(0, bytes);
    if (node_.op == Op::kAttentionGrad) {
      CostOf<Number> all = attention(1, bytes);
      // Five products against two: the scores again, dv, dp, dq, dk.
      all.flops = sizes_.quotient(Number(5) * all.flops, 2);
      return all;
    }
    if (node_.op == Op::kLinearCrossEntropyLoss)
      return products(1 + wanted(1) + wanted(2), node_.inputs[0], node_.inputs[1], 0, bytes);
    if (node_.op == Op::kLinearCrossEntropyLossGrad)
      return products(wanted(0) + wanted(1), node_.inputs[1], node_.inputs[4], 1, bytes);
    if (node_.op == Op::kPanelLinearCrossEntropyLoss) return products(1, node_.inputs[0], node_.inputs[1], 0, bytes);
    if (node_.op == Op::kPanelLinearCrossEntropyLossGrad)
      return products(wanted(0) + wanted(1), node_.inputs[5], node_.inputs[4], 0, bytes);
    if (node_.op == Op::kRecurrence) return products(1, node_.inputs[0], node_.inputs[1], 1, bytes);
    if (node_.op == Op::kRecurrenceGrad) return recurrence_grad(bytes);
    if (node_.op == Op::kGroupedMatMulGrad) return products(1, node_.inputs[0], node_.inputs[1], 1, bytes);
    const auto& a = sizes_.shape(node_.inputs[0]);
    const Number& inner = a[a.size() - (node_.attrs.b("transA", false) ? 2 : 1)];
    return {Number(2) * numel_of(node_.outputs[0]) * inner, bytes, 0};
  }

  // A convolution does 2 flops per output element and weight of its filter; each gradient as many.
  Number window_flops() const {
    if (node_.op == Op::kConv || node_.op == Op::kConvGrad) {
      const bool forward = node_.op == Op::kConv;
      const ValueId filter = node_.inputs[forward ? 1 : 2];
      const Number y = numel_of(forward ? node_.outputs[0] : node_.inputs[0]);
      const Number one = Number(2) * y * sizes_.quotient(numel_of(filter), sizes_.shape(filter)[0]);
      if (forward) return one;
      return Number((node_.outputs[0] ? 1 : 0) + (node_.outputs[1] ? 1 : 0)) * one + (node_.outputs[2] ? y : Number(0));
    }
    Number window = 1;
    if (node_.attrs.has("kernel_shape"))
      for (const Dim& dim : node_.attrs.ints("kernel_shape")) window = window * sizes_.number(dim);
    return window * numel_of(node_.op == Op::kAveragePoolGrad ? node_.inputs[0] : node_.outputs[0]);
  }

  const Graph& graph_;
  const Node& node_;
  Sizes sizes_;
};

}  // namespace

Cost cost(const Graph& graph, NodeId id) { return Counter(graph, graph.node(id), SymbolicSizes{graph}).count(); }

CostAt cost_at(const Graph& graph, NodeId id, const DimValues& dims) {
  return Counter(graph, graph.node(id), GivenSizes{graph, dims}).count();
}

}  // namespace lowtide
