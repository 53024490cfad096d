#include "lower/lower.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/check.h"
#include "ir/views.h"
#include "lower/alias.h"
#include "lower/call.h"
#include "lower/dtypes.h"
#include "lower/targets.h"
#include "ops/inference.h"

namespace lowtide {

namespace {

class Walk {
 public:
  Walk(const Graph& captured, LoweringReport& report, std::string_view broken)
      : captured_(captured),
        graph_(captured.name()),
        builder_(graph_),
        report_(report),
        broken_(broken),
        lowered_(captured.value_count()) {}

  Graph run() {
    graph_.ranges() = captured_.ranges();
    for (const GraphInput& input : captured_.inputs()) {
      const Value& value = captured_.value(input.value);
      lowered_[input.value.at()] =
          graph_.add_input(value.name, value.type, input.kind, input.requires_grad, input.strides);
      for (const Dim& dim : value.type.shape) sizes_.add_known(dim);
    }
    const std::vector<bool> live = find_live();
    find_output_memories();
    for (NodeId id : captured_.order())
      if (live[id.at()]) lower_node(id);
    for (const GraphOutput& output : captured_.outputs())
      graph_.add_output(map(output.value), output.kind, output.target ? map(output.target) : ValueId{});
    report_.values = std::move(lowered_);
    return std::move(graph_);
  }

 private:
  // lowtide::inspect(Tensor x, str name, int record) -> ()
  static bool is_inspection(const Node& node) { return node.target == "lowtide::inspect.default"; }

  // lowtide::size(Tensor number, SymInt size, int low, SymInt high) -> (): what `item()` read is a size.
  // lowtide::check_size(SymInt difference, int low, int high) -> ()
  static bool makes_size(const Node& node) { return node.target == "lowtide::size.default"; }
  static bool checks_size(const Node& node) { return node.target == "lowtide::check_size.default"; }

  // The tensor that PyTorch hands on where one of these ops has nothing to do, as x.to(x.dtype).
  ValueId as_it_came(ValueId value) const {
    for (NodeId id = captured_.value(value).producer; id; id = captured_.value(value).producer) {
      const Node& node = captured_.node(id);
      const auto is = [&](std::string_view name) { return node.target.starts_with(name); };
      const bool may_hand_on = is("aten::dropout.") || is("aten::feature_dropout.") || is("aten::alpha_dropout.") ||
                               is("aten::to.") || is("aten::contiguous.") || is("aten::type_as.");
      if (!may_hand_on || !node.inputs[0] || map(node.inputs[0]) != map(value)) break;
      value = node.inputs[0];
    }
    return value;
  }

  void lower_inspection(const Node& node, const std::vector<ValueId>& operands) {
    Attrs attrs{{"name", node.attrs.s("name") + "_forward"}, {"record", node.attrs.dim("record")}};
    std::vector<ValueId>& tensors = inspected_[operands[0].at()];
    const ValueId inspected = as_it_came(node.inputs[0]);
    const auto tensor = std::find(tensors.begin(), tensors.end(), inspected);
    if (!tensors.empty() && tensor != tensors.begin())
      attrs.set("tensor", static_cast<int64_t>(tensor - tensors.begin()));
    if (tensor == tensors.end()) tensors.push_back(inspected);
    graph_.add_node(Op::kInspect, operands, {}, attrs, node.origin);
  }

  // After functionalise no node has an effect but its outputs, inspections and sizes apart: one that nobody reads (an
  // assertion, a dead draw) goes. What a user's Function does beside computing, nobody knows. A node whose sizes
  // another one finds needs that one.
  std::vector<bool> find_live() const {
    std::map<std::string, NodeId> makers;
    for (NodeId id : captured_.order())
      for (ValueId output : captured_.node(id).outputs)
        if (output)
          for (const Dim& dim : captured_.type(output).shape)
            if (std::string symbol = sizes_.unknown_symbol(dim); !symbol.empty()) makers.try_emplace(symbol, id);
    std::vector<bool> live(captured_.node_capacity());
    auto mark = [&](ValueId value) {
      if (value && captured_.value(value).producer) live[captured_.value(value).producer.at()] = true;
    };
    for (const GraphOutput& output : captured_.outputs()) mark(output.value);
    for (NodeId id : captured_.order()) {
      const Node& node = captured_.node(id);
      if (is_inspection(node) || makes_size(node) || checks_size(node)) live[id.at()] = true;
    }
    for (auto at = captured_.order().rbegin(); at != captured_.order().rend(); ++at) {
      const Node& node = captured_.node(*at);
      if (node.op != Op::kPythonOp && !live[at->at()]) continue;
      live[at->at()] = true;
      for (ValueId input : node.inputs) mark(input);
      if (!makers.empty())
        for (const std::string& symbol : symbols_of(node))
          if (const auto maker = makers.find(symbol); maker != makers.end()) live[maker->second.at()] = true;
    }
    return live;
  }

  std::set<std::string> symbols_of(const Node& node) const {
    std::set<std::string> symbols;
    for (ValueId output : node.outputs)
      if (output)
        for (const Dim& dim : captured_.type(output).shape) collect_symbols(dim, symbols);
    for (const auto& [name, value] : node.attrs) {
      if (const Dim* dim = std::get_if<Dim>(&value)) collect_symbols(*dim, symbols);
      if (const auto* list = std::get_if<std::vector<Dim>>(&value))
        for (const Dim& dim : *list) collect_symbols(dim, symbols);
    }
    return symbols;
  }

  // The captured value whose memory PyTorch's tensor lies in, as far as the calls tell.
  ValueId memory(ValueId value) const {
    for (NodeId id = captured_.value(value).producer; id; id = captured_.value(value).producer) {
      if (aliasing(captured_, captured_.node(id)) == Aliasing::kNone) break;
      value = captured_.node(id).inputs[0];
    }
    return value;
  }

  void find_output_memories() {
    for (const GraphOutput& output : captured_.outputs())
      if (output.kind == OutputKind::kOutput) output_memories_.insert(memory(output.value));
  }

  // The caller may change an output in place: what PyTorch copies (a clone, a list of one that is joined, the sum of
  // one number) shares no bytes with an input or with what is another output's memory.
  ValueId with_own_memory(ValueId captured, ValueId result) {
    if (is_clone_of_output(captured, result)) return builder_.op(Op::kCopy, {result}, {{"keeps", true}});
    if (!output_memories_.contains(captured) || may_share(captured_.node(captured_.value(captured).producer)) ||
        is_complex(graph_.type(result).dtype))
      return result;
    const ValueId bytes = base_of_views(graph_, result);
    if (graph_.value(bytes).producer && shown_.insert(bytes).second) return result;
    return builder_.op(Op::kCopy, {result}, {{"keeps", true}});
  }

  // Which backward may read after the caller has changed the output. Its lowering has made no copy.
  bool is_clone_of_output(ValueId captured, ValueId result) const {
    const Node& node = captured_.node(captured_.value(captured).producer);
    return node.target == "aten::clone.default" && is_float(graph_.type(result).dtype) &&
           output_memories_.contains(memory(node.inputs[0])) &&
           base_of_views(graph_, result) == base_of_views(graph_, map(node.inputs[0]));
  }

  ValueId map(ValueId captured) const { return captured ? lowered_[captured.at()] : ValueId{}; }

  // Sizes must be functions of the inputs' sizes and of those that nodes before have found.
  void check_sizes(const Node& node) const {
    for (const std::string& symbol : symbols_of(node))
      LT_USER_CHECK(ErrorKind::kUnsupported, sizes_.unknown_symbol(Dim::symbol(symbol)).empty(), describe_call(node),
                    ": the size ", symbol, " depends on data");
  }

  void lower_node(NodeId id) {
    const Node& node = captured_.node(id);
    builder_.set_origin(node.origin);
    std::vector<ValueId> operands;
    for (ValueId input : node.inputs) operands.push_back(map(input));
    if (node.op == Op::kPythonOp) return lower_function(id, operands);
    if (is_inspection(node)) return lower_inspection(node, operands);
    if (makes_size(node))
      return sizes_.set(builder_, node.attrs.dim("size"), builder_.cast(operands[0], DType::kI64), node.attrs.i("low"),
                        node.attrs.dim("high"));
    if (checks_size(node))
      return sizes_.check(builder_, node.attrs.dim("difference"), node.attrs.i("low"), node.attrs.i("high"));
    if (node.op != Op::kAten) return copy_node(id, operands);
    check_operand_dtypes(captured_, node);

    const Target* target = find_target(node.target);
    if (target != nullptr && !bugs_.contains(node.target) && (only_moves(*target) || !has_complex(node))) {
      // PyTorch's kernel needs no lowering. What was emitted before the error is read by nobody.
      try {
        if (lower_by(*target, id, operands)) return;
      } catch (const InternalError& error) {
        note_bug(node, error.what());
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kInvalidGraph) throw;  // what the exporter gives is valid
        note_bug(node, error.what());
      }
    }
    check_sizes_beside_bugs(node);
    report_.fallbacks.push_back(describe_call(node));
    copy_node(id, operands);
  }

  // A size that a lowering would have found stays unknown where it has a bug: that is the reason then.
  void check_sizes_beside_bugs(const Node& node) const {
    const auto bug = bugs_.find(node.target);
    try {
      check_sizes(node);
    } catch (const Error&) {
      if (bug != bugs_.end()) throw InternalError(bug->second);
      throw;
    }
  }

  // PyTorch computes with complex numbers.
  bool has_complex(const Node& node) const {
    const auto complex = [&](ValueId value) { return value && is_complex(captured_.type(value).dtype); };
    return std::any_of(node.inputs.begin(), node.inputs.end(), complex) ||
           std::any_of(node.outputs.begin(), node.outputs.end(), complex);
  }

  void note_bug(const Node& node, std::string_view error) {
    report_.bugs.push_back(concat(describe_call(node), ": ", error));
    bugs_.emplace(node.target, report_.bugs.back());
  }

  bool lower_by(const Target& target, NodeId id, const std::vector<ValueId>& operands) {
    LT_CHECK(target.name != broken_, "a test has broken its lowering");
    const size_t first_new = graph_.value_count();
    Call call(builder_, captured_, id, operands, target.op, next_stream_, sizes_);
    if (!target.lower(call)) return false;
    check_sizes(captured_.node(id));
    take_results(id, call.results(), first_new);
    ++report_.lowered;
    return true;
  }

  // The op of ours that a Function was found to compute, forward and backward (capture/formulas.py). Its constants have
  // the digits that f32 can tell: in f64 it is another function.
  std::optional<Op> computed_op(const Node& node, const std::vector<ValueId>& operands) const {
    if (!node.attrs.has("computes") || operands.size() != 1 || node.outputs.size() != 1) return std::nullopt;
    if (graph_.type(operands[0]).dtype == DType::kF64) return std::nullopt;
    const std::optional<Op> op = find_op(node.attrs.s("computes"));
    return op && info(*op).category == OpCategory::kPointwise ? op : std::nullopt;
  }

  void lower_function(NodeId id, const std::vector<ValueId>& operands) {
    const Node& node = captured_.node(id);
    check_sizes(node);
    const size_t first_new = graph_.value_count();
    if (const std::optional<Op> op = computed_op(node, operands)) {
      ++report_.lowered;
      return take_results(id, {builder_.op(*op, operands)}, first_new);
    }
    report_.fallbacks.push_back(describe_call(node));
    copy_node(id, operands);
  }

  void take_results(NodeId id, const std::vector<ValueId>& results, size_t first_new) {
    const Node& node = captured_.node(id);
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (!node.outputs[i]) continue;
      ValueId result = results[i];
      const TensorType& expected = captured_.type(node.outputs[i]);
      LT_CHECK(result.valid(), describe_call(node), ": its lowering gives no output ", i);
      // Two forms of one size, like (s - 1)//2 + 1 and (s + 1)//2: the exporter's stays.
      if (shapes_agree(graph_.type(result).shape, expected.shape, captured_.ranges()))
        result = builder_.reshape(result, expected.shape);
      result = with_own_memory(node.outputs[i], result);
      LT_CHECK(graph_.type(result) == expected, describe_call(node), ": its lowering gives ",
               to_string(graph_.type(result)), " where the exporter says ", to_string(expected));
      lowered_[node.outputs[i].at()] = result;
      // The captured name goes to the value that stands for it, unless that is an older one.
      if (result.at() >= first_new) graph_.rename(result, captured_.value(node.outputs[i]).name);
    }
  }

  void copy_node(NodeId id, const std::vector<ValueId>& operands) {
    const Node& node = captured_.node(id);
    const NodeId copy = graph_.add_copy(captured_, id, operands);
    for (size_t i = 0; i < node.outputs.size(); ++i)
      if (node.outputs[i]) lowered_[node.outputs[i].at()] = graph_.node(copy).outputs[i];
  }

  const Graph& captured_;
  Graph graph_;
  Builder builder_;
  LoweringReport& report_;
  std::string_view broken_;
  std::map<std::string, std::string> bugs_;           // targets whose lowering has failed → the first time, in words
  std::vector<ValueId> lowered_;                      // by captured value
  std::map<size_t, std::vector<ValueId>> inspected_;  // number of the lowered value → captured ones, in order
  std::set<ValueId> output_memories_;                 // captured values
  std::set<ValueId> shown_;                           // whose bytes are in outputs
  DataSizes sizes_;
  int64_t next_stream_ = 0;
};

}  // namespace

// The exporter leaves sizes like 1 - max(0, 1 - s) in its shapes; the ranges know better.
static void simplify_sizes(Graph& graph) {
  const DimRanges& ranges = graph.ranges();
  for (size_t i = 0; i < graph.value_count(); ++i) {
    const ValueId id{static_cast<int32_t>(i)};
    TensorType type = graph.type(id);
    for (Dim& dim : type.shape) dim = simplify(dim, ranges);
    if (type != graph.type(id)) graph.set_type(id, std::move(type));
  }
  for (NodeId id : graph.order()) {
    Attrs attrs = graph.node(id).attrs;
    for (const auto& [name, value] : graph.node(id).attrs) {
      if (const Dim* dim = std::get_if<Dim>(&value)) attrs.set(name, simplify(*dim, ranges));
      if (const auto* list = std::get_if<std::vector<Dim>>(&value)) {
        std::vector<Dim> simplified;
        for (const Dim& dim : *list) simplified.push_back(simplify(dim, ranges));
        attrs.set(name, std::move(simplified));
      }
    }
    if (attrs != graph.node(id).attrs) graph.edit(id).attrs = std::move(attrs);
  }
}

Graph lower(const Graph& captured, LoweringReport* report, std::string_view broken) {
  LoweringReport unread;
  Graph simplified = captured.clone();
  simplify_sizes(simplified);
  return Walk(simplified, report != nullptr ? *report : unread, broken).run();
}

std::vector<std::string> lowered_targets() {
  std::vector<std::string> names;
  for (const Target& target : all_targets()) names.emplace_back(target.name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace lowtide
