#include "random_graph.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lowtide::fuzz {

namespace {

class TextGraphs {
 public:
  explicit TextGraphs(uint64_t seed) : random_(seed) {}

  Graph graph(int depth, std::vector<TensorType> input_types, bool is_body) {
    Graph graph(odd_string(0.1, "g"));
    if (!is_body) {
      for (const char* symbol : {"batch", "s_1"})
        if (chance(0.5)) graph.ranges()[symbol] = range();
      add_inputs(graph);
    }
    for (TensorType& type : input_types) graph.add_input(odd_string(0.1, "in"), std::move(type), InputKind::kInput);
    const int nodes = static_cast<int>(pick(0, 12));
    const int yield_at = !is_body && chance(0.3) ? static_cast<int>(pick(0, nodes)) : -1;
    for (int i = 0; i <= nodes; ++i) {
      if (i == yield_at) add_yield(graph);
      if (i < nodes) add_node(graph, depth);
    }
    add_outputs(graph, is_body);
    return graph;
  }

 private:
  int64_t pick(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  bool chance(double probability) { return std::uniform_real_distribution<>(0, 1)(random_) < probability; }
  template <class Items>
  const auto& one_of(const Items& items) {
    return *std::next(std::begin(items), pick(0, static_cast<int64_t>(std::size(items)) - 1));
  }

  std::string odd_string(double odd, const char* usual) {
    if (!chance(odd)) return usual;
    const std::string pieces[] = {"a",  "\"", "\\", "\n", "\t",    "\x01", " ", "  ",
                                  "//", "%",  "é",  ".",  "graph", "}",    "_"};
    std::string text = "q";
    for (int64_t i = pick(0, 4); i > 0; --i) text += one_of(pieces);
    return text;
  }

  Dim dim(int depth = 2) {
    const int64_t kind = depth == 0 ? pick(0, 2) : pick(0, 12);
    if (kind <= 1) return Dim(pick(0, 64));
    if (kind <= 5) return Dim::symbol(chance(0.5) ? "batch" : "s_1");
    const Dim x = dim(depth - 1), y = dim(depth - 1);
    switch (kind) {
      case 6: return x + y;
      case 7: return x - y;
      case 8: return x * y;
      case 9: return floordiv(x, Dim(pick(1, 5)));
      case 10: return mod(x, y + 1 == Dim(0) ? Dim(3) : y + 1);
      case 11: return min(x, y);
      default: return max(x, y);
    }
  }
  Dim size() {
    const Dim candidate = dim();
    return candidate.is_constant() && candidate.constant() < 0 ? Dim(1) : candidate;
  }
  Shape shape() {
    Shape shape;
    for (int64_t i = pick(0, 3); i > 0; --i) shape.push_back(size());
    return shape;
  }
  DType dtype() { return static_cast<DType>(pick(0, 10)); }
  TensorType type() { return {dtype(), shape()}; }

  DimRange range() {
    const int64_t low = pick(0, 5);
    return {low, chance(0.3) ? std::numeric_limits<int64_t>::max() : low + pick(0, 1000)};
  }

  double number() {
    const double odd[] = {0.0,
                          -0.0,
                          1.0,
                          1e-5,
                          1e300,
                          5e-324,
                          std::numeric_limits<double>::infinity(),
                          -std::numeric_limits<double>::infinity(),
                          std::nan("")};
    return chance(0.5) ? one_of(odd) : std::normal_distribution<>(0, 100)(random_);
  }

  Attrs::Value attribute(AttrType type) {
    switch (type) {
      case AttrType::kInt: return chance(0.1) ? Dim(std::numeric_limits<int64_t>::min()) : dim();
      case AttrType::kFloat: return number();
      case AttrType::kBool: return chance(0.5);
      case AttrType::kString: return odd_string(0.5, "tanh");
      case AttrType::kDType: return dtype();
      case AttrType::kInts: return shape();
      case AttrType::kFloats: {
        std::vector<double> numbers;
        for (int64_t i = pick(0, 3); i > 0; --i) numbers.push_back(number());
        return numbers;
      }
    }
    return false;
  }

  Attrs attributes(const OpInfo& op) {
    Attrs attrs;
    for (const AttrSchema& schema : op.attrs)
      if (schema.required || chance(0.5)) attrs.set(schema.name, attribute(schema.type));
    if (!is_call(op.op)) return attrs;
    const char* names[] = {"dim", "keepdim", "floats", "strings", "inf", "operands", "_x"};
    for (const char* name : names)
      if (chance(0.3)) attrs.set(name, attribute(static_cast<AttrType>(pick(0, 6))));
    if (chance(0.3)) {
      std::vector<std::string> strings;
      for (int64_t i = pick(0, 3); i > 0; --i) strings.push_back(odd_string(0.5, "self"));
      attrs.set("names", strings);
    }
    return attrs;
  }

  Origin origin() {
    Origin origin;
    if (chance(0.5)) return origin;
    origin.kind = static_cast<OriginKind>(pick(0, 3));
    if (chance(0.7)) origin.module = odd_string(0.2, "model.h.0");
    if (chance(0.7)) origin.line = odd_string(0.2, "model.py:41");
    if (chance(0.2)) origin.note = odd_string(0.3, "BiasGelu+Dropout");
    return origin;
  }

  std::vector<ValueId> values(const Graph& graph) {
    std::vector<ValueId> values;
    for (const GraphInput& input : graph.inputs()) values.push_back(input.value);
    for (NodeId id : graph.order())
      for (ValueId output : graph.node(id).outputs)
        if (output) values.push_back(output);
    return values;
  }

  void add_inputs(Graph& graph) {
    // Carries both symbols, so that every size is known.
    graph.add_input("x", {DType::kF32, {Dim::symbol("batch"), Dim::symbol("s_1")}}, InputKind::kInput, chance(0.3));
    for (int64_t i = pick(0, 4); i > 0; --i) {
      TensorType input_type = type();
      Shape strides = chance(0.3) ? input_type.shape : Shape();
      const bool grad = is_float(input_type.dtype) && chance(0.5);
      graph.add_input(odd_string(0.2, "p.weight"), std::move(input_type), static_cast<InputKind>(pick(0, 3)), grad,
                      std::move(strides));
    }
  }

  void add_yield(Graph& graph) {
    const std::vector<ValueId> all = values(graph);
    std::vector<ValueId> operands;
    Shape grads;
    std::vector<TensorType> types;
    for (int64_t i = pick(0, 3); i > 0; --i) {
      operands.push_back(one_of(all));
      if (chance(0.3)) continue;
      grads.push_back(Dim(static_cast<int64_t>(operands.size()) - 1));
      types.push_back(graph.type(operands.back()));
    }
    graph.add_node(Op::kYieldOp, operands, types, {{"grads", grads}}, origin());
  }

  void add_node(Graph& graph, int depth) {
    const std::vector<ValueId> all = values(graph);
    const OpInfo* op = &one_of(all_ops());
    if (op->op == Op::kYieldOp || makes_size(op->op) || (op->op == Op::kFusedGroup && (depth == 0 || all.empty())))
      op = &info(Op::kAten);
    if (op->op == Op::kFusedGroup) return add_group(graph, depth, all);
    std::vector<ValueId> operands;
    const int64_t operand_count = pick(op->min_inputs, std::min(op->max_inputs, op->min_inputs + 3));
    for (int64_t i = 0; i < operand_count; ++i) {
      if (all.empty()) return;
      operands.push_back(i >= op->min_inputs && chance(0.2) ? ValueId{} : one_of(all));
    }
    std::vector<TensorType> types;
    std::vector<std::string> names;
    std::vector<bool> wanted;
    for (int64_t i = pick(op->min_outputs, std::min(op->max_outputs, op->min_outputs + 2)); i > 0; --i) {
      types.push_back(type());
      names.push_back(odd_string(0.1, ""));
      wanted.push_back(!chance(0.1));
    }
    const NodeId id = graph.add_node(op->op, operands, types, attributes(*op), origin(), {}, names, wanted);
    const char* targets[] = {"aten::add.Tensor", "torchvision::nms", "mod.Class", "a b::c", "x::", "aten::f"};
    if (is_call(op->op)) graph.edit(id).target = chance(0.2) ? odd_string(1, "") : one_of(targets);
  }

  void add_group(Graph& graph, int depth, const std::vector<ValueId>& all) {
    std::vector<ValueId> operands;
    std::vector<TensorType> types;
    for (int64_t i = pick(1, 3); i > 0; --i) {
      operands.push_back(one_of(all));
      types.push_back(graph.type(operands.back()));
    }
    Graph body = this->graph(depth - 1, types, true);
    std::vector<TensorType> outputs;
    for (const GraphOutput& output : body.outputs()) outputs.push_back(body.type(output.value));
    const NodeId id = graph.add_node(Op::kFusedGroup, operands, outputs, {}, origin());
    graph.edit(id).body = std::make_unique<Graph>(std::move(body));
  }

  void add_outputs(Graph& graph, bool is_body) {
    const std::vector<ValueId> all = values(graph);
    const bool training = graph.yield().valid();
    if (!training)
      for (int64_t i = pick(is_body ? 1 : 0, 3); i > 0; --i) graph.add_output(one_of(all));
    if (is_body) return;
    for (const GraphInput& input : graph.inputs()) {
      if (chance(0.2)) graph.add_output(input.value, OutputKind::kUpdate, input.value);
      if (training && is_float(graph.type(input.value).dtype) && chance(0.5))
        graph.add_output(input.value, OutputKind::kGradient, input.value);
    }
  }

  std::mt19937_64 random_;
};

}  // namespace

Graph random_text_graph(uint64_t seed) { return TextGraphs(seed).graph(2, {}, false); }

}  // namespace lowtide::fuzz
