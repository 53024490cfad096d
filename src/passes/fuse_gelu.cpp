#include "passes/fuse_gelu.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "passes/pattern.h"

namespace lowtide {

namespace {

constexpr int kMaxDegree = 4;
constexpr int kMaxDepth = 6;  // of the arithmetic below a tanh and above it

// A polynomial in x and f, f being the value of the tanh, erf or sigmoid: powers of both → factor.
using Polynomial = std::map<std::pair<int, int>, double>;

class Reader {
 public:
  // `function`: none while the argument of the function itself is read.
  Reader(const Graph& graph, Pattern& pattern, ValueId x, ValueId function)
      : graph_(graph), pattern_(pattern), x_(x), function_(function) {}

  // The value as a polynomial; nullopt if it holds anything but x, f, constants, sums and products.
  std::optional<Polynomial> read(ValueId value, int depth = 0) {
    if (value == x_) return Polynomial{{{1, 0}, 1.0}};
    if (function_ && value == function_) return Polynomial{{{0, 1}, 1.0}};
    if (const std::optional<double> constant = uniform_float(graph_, value)) return Polynomial{{{0, 0}, *constant}};
    const bool may_be_inspected = depth == 0;  // the activation's result, if it is a module's
    const NodeId id =
        producer(graph_, value, {Op::kAdd, Op::kSub, Op::kMul, Op::kDiv, Op::kPow, Op::kNeg}, may_be_inspected);
    if (!id || depth == kMaxDepth) return std::nullopt;
    const Node& node = graph_.node(id);
    pattern_.add(id);
    const std::optional<Polynomial> a = read(node.inputs[0], depth + 1);
    if (!a) return std::nullopt;
    if (node.op == Op::kNeg) return scale(*a, -1);
    const std::optional<Polynomial> b = read(node.inputs[1], depth + 1);
    if (!b) return std::nullopt;
    switch (node.op) {
      case Op::kAdd: return add(*a, *b);
      case Op::kSub: return add(*a, scale(*b, -1));
      case Op::kMul: return multiply(*a, *b);
      case Op::kDiv: return is_constant(*b) ? std::optional(scale(*a, 1 / constant(*b))) : std::nullopt;
      default: return power(*a, *b);
    }
  }

 private:
  static bool is_constant(const Polynomial& a) { return a.size() == 1 && a.begin()->first == std::pair(0, 0); }
  static double constant(const Polynomial& a) { return a.begin()->second; }
  static Polynomial scale(Polynomial a, double factor) {
    for (auto& [powers, value] : a) value *= factor;
    return a;
  }
  static Polynomial add(Polynomial a, const Polynomial& b) {
    for (const auto& [powers, value] : b) a[powers] += value;
    return a;
  }
  static std::optional<Polynomial> multiply(const Polynomial& a, const Polynomial& b) {
    Polynomial product;
    for (const auto& [p, x] : a)
      for (const auto& [q, y] : b) {
        if (p.first + q.first > kMaxDegree || p.second + q.second > 1) return std::nullopt;
        product[{p.first + q.first, p.second + q.second}] += x * y;
      }
    return product;
  }
  static std::optional<Polynomial> power(const Polynomial& a, const Polynomial& b) {
    if (!is_constant(b) || constant(b) < 1 || constant(b) > kMaxDegree || constant(b) != std::floor(constant(b)))
      return std::nullopt;
    std::optional<Polynomial> result = a;
    for (int i = 1; result && i < static_cast<int>(constant(b)); ++i) result = multiply(*result, a);
    return result;
  }

  const Graph& graph_;
  Pattern& pattern_;
  ValueId x_, function_;
};

bool are_near(const Polynomial& found, const Polynomial& expected) {
  return found.size() == expected.size() &&
         std::equal(found.begin(), found.end(), expected.begin(),
                    [](const auto& a, const auto& b) { return a.first == b.first && is_near(a.second, b.second); });
}

// The values from which `value` is computed by sums and products: one of them is x.
std::vector<ValueId> candidates(const Graph& graph, ValueId value) {
  std::vector<ValueId> found = {value};
  for (size_t i = 0; i < found.size() && found.size() < 32; ++i) {
    const NodeId id = producer(graph, found[i], {Op::kAdd, Op::kSub, Op::kMul, Op::kDiv, Op::kPow, Op::kNeg});
    if (!id) continue;
    for (ValueId input : graph.node(id).inputs)
      if (!uniform_float(graph, input) && std::find(found.begin(), found.end(), input) == found.end())
        found.push_back(input);
  }
  return found;
}

// Values computed from `value` by sums and products within a few steps.
std::vector<ValueId> results(const Graph& graph, ValueId value) {
  std::vector<ValueId> found, level = {value};
  for (int depth = 0; depth < 3; ++depth) {
    std::vector<ValueId> next;
    for (ValueId from : level)
      for (NodeId user : graph.value(from).users)
        if (const Op op = graph.node(user).op; op == Op::kAdd || op == Op::kMul || op == Op::kDiv)
          next.push_back(graph.node(user).outputs[0]);
    found.insert(found.end(), next.begin(), next.end());
    level = std::move(next);
    if (found.size() > 16) break;
  }
  return found;
}

struct Activation {
  Op op;
  Attrs attrs;
  Polynomial result;  // what it is of x and f
};

// Which activation has this function of this argument.
std::optional<Activation> activation(Op function, const Polynomial& argument) {
  const double inverse_sqrt2 = std::sqrt(0.5), c = std::sqrt(2 / M_PI);
  const Polynomial half = {{{1, 0}, 0.5}, {{1, 1}, 0.5}};
  if (function == Op::kErf && are_near(argument, {{{1, 0}, inverse_sqrt2}})) return Activation{Op::kGelu, {}, half};
  if (function == Op::kTanh && are_near(argument, {{{1, 0}, c}, {{3, 0}, c * 0.044715}}))
    return Activation{Op::kFastGelu, {}, half};
  if (function != Op::kSigmoid || argument.size() != 1 || argument.begin()->first != std::pair(1, 0))
    return std::nullopt;
  const double alpha = argument.begin()->second;
  if (alpha == 1) return Activation{Op::kSwish, {}, {{{1, 1}, 1.0}}};
  return Activation{Op::kQuickGelu, {{"alpha", alpha}}, {{{1, 1}, 1.0}}};
}

bool fuse_gelu_at(Graph& graph, NodeId function) {
  const ValueId f = graph.node(function).outputs[0];
  if (!is_float(graph.type(f).dtype)) return false;
  for (ValueId x : candidates(graph, operand(graph, function, 0))) {
    Pattern argument_pattern(graph);
    argument_pattern.add(function);
    const std::optional<Polynomial> argument = Reader(graph, argument_pattern, x, {}).read(operand(graph, function, 0));
    const std::optional<Activation> known = argument ? activation(graph.node(function).op, *argument) : std::nullopt;
    if (!known) continue;
    for (ValueId result : results(graph, f)) {
      Pattern pattern = argument_pattern;
      const std::optional<Polynomial> polynomial = Reader(graph, pattern, x, f).read(result);
      const NodeId root = graph.value(result).producer;
      if (!polynomial || !are_near(*polynomial, known->result) || !pattern.is_closed(root)) continue;
      if (graph.type(result) != graph.type(x)) continue;
      Builder b = before(graph, root);
      b.set_origin(pattern.origin(root));
      graph.replace_uses(result, b.op(known->op, {x}, known->attrs));
      return true;
    }
  }
  return false;
}

}  // namespace

bool fuse_gelu(Graph& graph) {
  bool changed = false;
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order) {
    const Op op = graph.node(id).op;
    if (op == Op::kTanh || op == Op::kErf || op == Op::kSigmoid) changed = fuse_gelu_at(graph, id) || changed;
  }
  return changed;
}

}  // namespace lowtide
