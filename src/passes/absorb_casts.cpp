#include "passes/absorb_casts.h"

#include "passes/rewrite.h"

namespace lowtide {

namespace {

// More products that round the same tensor would read more bytes than the cast moves.
constexpr size_t kMostReaders = 2;

struct Reader {
  NodeId node;
  size_t operand;
};

class Absorption {
 public:
  explicit Absorption(Graph& graph) : graph_(graph) {}

  bool run() {
    return rewrite_nodes(graph_, 1, [this](NodeId id) {
      if (!has_trait(graph_.node(id).op, Trait::kConvertsDtype)) return false;
      const DType from = graph_.type(operand(graph_, id, 0)).dtype, to = graph_.node(id).attrs.t("to");
      if (!(from == DType::kF32 && is_half(to)) && !(is_half(from) && to == DType::kF32)) return false;
      // The fewer bytes are moved, the better: 16 bits are what is between.
      return is_half(to) ? write_converted(id) || read_converted(id) : read_converted(id) || write_converted(id);
    });
  }

 private:
  // What computes the cast's operand writes the cast's result.
  bool write_converted(NodeId cast) {
    const ValueId x = operand(graph_, cast, 0);
    const DType computes = graph_.type(x).dtype, gives = graph_.type(graph_.node(cast).outputs[0]).dtype;
    const NodeId maker = producer_with(graph_, x, Trait::kConvertsResults);
    if (!maker || !may_give(graph_.node(maker), computes)) return false;
    // A norm's statistics stay as they are; of anything else all results are converted.
    std::vector<ValueId> results = graph_.node(maker).outputs;
    if (has_trait(graph_.node(maker).op, Trait::kNorm)) results.resize(1);
    for (ValueId result : results)
      if (result && !is_read_as(result, gives)) return false;
    Attrs& attrs = graph_.edit(maker).attrs;
    attrs.set("computes", computes);
    attrs.set("gives", gives);
    for (ValueId result : results)
      if (result) retype(result, gives);
    return true;
  }

  static bool may_give(const Node& maker, DType computes) {
    if (maker.attrs.has("gives")) return false;
    if (maker.attrs.has("computes") && maker.attrs.t("computes") != computes) return false;
    // What computes f32 gives 16 bits, what computes 16 bits gives f32.
    if (is_half(computes) == has_trait(maker.op, Trait::kWidensOperands)) return false;
    switch (info(maker.op).category) {
      case OpCategory::kReduce: return sums_first_dims(maker);
      // An addend is read from where the result is written.
      case OpCategory::kGemm: return maker.outputs.size() > 1 || maker.inputs.size() < 3 || !maker.inputs[2];
      default: return true;
    }
  }

  // As gradients of biases do.
  static bool sums_first_dims(const Node& sum) {
    const std::vector<int64_t> axes = sum.attrs.is("axes");
    for (size_t i = 0; i < axes.size(); ++i)
      if (axes[i] != static_cast<int64_t>(i)) return false;
    return true;
  }

  // Whether nobody reads the value, through views, but casts to this dtype and what computes in it.
  bool is_read_as(ValueId value, DType dtype) const {
    if (graph_.is_output(value)) return false;
    for (NodeId user : graph_.value(value).users) {
      const Node& node = graph_.node(user);
      const bool is_cast = has_trait(node.op, Trait::kConvertsDtype) && node.attrs.t("to") == dtype;
      const bool computes = node.attrs.has("computes") && node.attrs.t("computes") == dtype;
      if (is_view(node.op) ? !is_read_as(node.outputs[0], dtype) : !is_cast && !computes) return false;
    }
    return true;
  }

  // Everything that reads the cast's result, through views, reads its operand.
  bool read_converted(NodeId cast) {
    const ValueId x = operand(graph_, cast, 0), y = graph_.node(cast).outputs[0];
    const DType to = graph_.type(y).dtype;
    std::vector<Reader> readers;
    if (!collect(y, to, readers) || readers.empty()) return false;
    if (is_half(to) && !may_read_wide(x, cast, readers)) return false;
    for (const Reader& reader : readers) graph_.edit(reader.node).attrs.set("computes", to);
    graph_.replace_uses(y, x);
    retype(x, graph_.type(x).dtype);
    return true;
  }

  bool collect(ValueId value, DType to, std::vector<Reader>& readers) const {
    if (graph_.is_output(value)) return false;
    for (NodeId user : graph_.value(value).users) {
      const Node& node = graph_.node(user);
      if (is_view(node.op)) {
        if (!collect(node.outputs[0], to, readers)) return false;
        continue;
      }
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (node.inputs[i] != value) continue;
        if (!may_read(node, i, to)) return false;
        readers.push_back({user, i});
      }
    }
    return true;
  }

  bool may_read(const Node& node, size_t index, DType to) const {
    if (!has_trait(node.op, is_half(to) ? Trait::kRoundsOperands : Trait::kWidensOperands)) return false;
    if (is_statistic(node.op, index)) return false;
    if (node.attrs.has("computes")) return node.attrs.t("computes") == to;
    // A norm's statistics are f32 whatever it computes in: its rows tell.
    return graph_.type(node.inputs[index]).dtype == to;
  }

  bool may_read_wide(ValueId x, NodeId cast, const std::vector<Reader>& readers) const {
    if (readers.size() > kMostReaders) return false;
    if (graph_.find_input(base_of_views(graph_, x)) != nullptr) return true;
    return readers.size() == 1 && is_backward(cast) == is_backward(readers[0].node);
  }

  bool is_backward(NodeId id) const {
    for (NodeId each : graph_.order()) {
      if (each == id) return false;
      if (is_yield(graph_.node(each).op)) return true;
    }
    return false;
  }

  // The value and its views have this dtype; casts to it go.
  void retype(ValueId value, DType dtype) {
    graph_.set_type(value, {dtype, graph_.type(value).shape});
    const std::vector<NodeId> users = graph_.value(value).users;
    for (NodeId user : users) {
      const Node& node = graph_.node(user);
      if (is_view(node.op)) retype(node.outputs[0], dtype);
      const bool is_cast = has_trait(node.op, Trait::kConvertsDtype) && node.attrs.t("to") == dtype;
      if (is_cast) replace_keeping_name(graph_, node.outputs[0], value);
    }
  }

  Graph& graph_;
};

}  // namespace

bool absorb_casts(Graph& graph) { return Absorption(graph).run(); }

}  // namespace lowtide
