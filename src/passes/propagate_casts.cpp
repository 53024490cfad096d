#include "passes/propagate_casts.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "passes/rewrite.h"

namespace lowtide {

namespace {

constexpr int kRounds = 16;
constexpr int kHighestLevel = 2;

std::set<Op> allowed_ops(const PassOptions& options) {
  LT_USER_CHECK(ErrorKind::kInvalidArgument, options.cast_level >= 0 && options.cast_level <= kHighestLevel,
                "the level of cast propagation is ", options.cast_level, ", expected 0, 1 or 2");
  std::set<Op> ops;
  for (const OpInfo& each : all_ops()) {
    const bool from_1 = has_trait(each.op, Trait::kCastLevel1), from_2 = has_trait(each.op, Trait::kCastLevel2);
    if ((from_1 && options.cast_level >= 1) || (from_2 && options.cast_level >= 2)) ops.insert(each.op);
  }
  for (const std::string& name : options.cast_allow) {
    const std::optional<Op> op = find_op(name);
    LT_USER_CHECK(ErrorKind::kInvalidArgument, op && info(*op).max_outputs == 1 && !is_call(*op),
                  "cast propagation over '", name, "', which is no op with one output");
    ops.insert(*op);
  }
  return ops;
}

// Every number of `narrow` is one of `wide`, at more bytes.
bool is_narrower(DType narrow, DType wide) {
  return is_float(narrow) && is_float(wide) && size_bytes(narrow) < size_bytes(wide);
}

// Gives each element of x, unchanged, to its result: rounding before or after is the same. Relu keeps order and zero.
bool commutes_with_rounding(Op op) { return is_view(op) || has_trait(op, Trait::kCommutesWithRounding); }

class Propagation {
 public:
  Propagation(Graph& graph, std::set<Op> ops) : graph_(graph), ops_(std::move(ops)) {}

  bool run() {
    return rewrite_nodes(graph_, kRounds, [this](NodeId id) {
      const Node& node = graph_.node(id);
      if (!ops_.contains(node.op)) return false;
      if (has_trait(node.op, Trait::kLoss)) return narrow_logits(id);
      if (node.outputs.size() != 1 || !is_read(graph_, node.outputs[0])) return false;
      return narrow_pair(id) || move_up(id) || move_down(id);
    });
  }

 private:
  // The dtype that every reader of `value` casts it to, if there is one and it is narrower.
  std::optional<DType> narrowed_to(ValueId value) const {
    if (is_module_output(graph_, value) || graph_.value(value).users.empty()) return std::nullopt;
    std::optional<DType> narrow;
    for (NodeId user : graph_.value(value).users) {
      const Node& cast = graph_.node(user);
      if (!has_trait(cast.op, Trait::kConvertsDtype)) return std::nullopt;
      const DType to = cast.attrs.t("to");
      if (!is_narrower(to, graph_.type(value).dtype) || (narrow && *narrow != to)) return std::nullopt;
      narrow = to;
    }
    return narrow;
  }

  // What `value` is a widening cast of.
  ValueId widened_from(ValueId value) const {
    const NodeId cast = producer_with(graph_, value, Trait::kConvertsDtype);
    if (!cast) return {};
    const ValueId x = operand(graph_, cast, 0);
    return is_narrower(graph_.type(x).dtype, graph_.type(value).dtype) ? x : ValueId{};
  }

  // Casts around the op, to and from one narrow dtype → none
  bool narrow_pair(NodeId id) {
    const Node& node = graph_.node(id);
    const DType wide = graph_.type(node.outputs[0]).dtype;
    if (wide != DType::kF32) return false;  // f32's own kernels do not compute in f64
    const std::optional<DType> narrow = narrowed_to(node.outputs[0]);
    if (!narrow) return false;
    std::vector<ValueId> inputs = node.inputs;
    bool found = false;
    for (ValueId& input : inputs) {
      if (!input || !is_float(graph_.type(input).dtype)) continue;
      const ValueId x = graph_.type(input).dtype == wide ? widened_from(input) : ValueId{};
      if (!x || graph_.type(x).dtype != *narrow) return false;
      input = x;
      found = true;
    }
    return found && replace_casts(id, std::move(inputs));
  }

  // Loss(Cast(f32) x) → Loss(x): its kernels widen the logits row by row, and it gives f32 either way.
  bool narrow_logits(NodeId id) {
    const ValueId x = widened_from(graph_.node(id).inputs[0]);
    const bool has_weights = graph_.node(id).inputs.size() > 2 && graph_.node(id).inputs[2];
    if (!x || has_weights || graph_.type(graph_.node(id).inputs[0]).dtype != DType::kF32) return false;
    const NodeId cast = graph_.value(graph_.node(id).inputs[0]).producer;
    graph_.set_operand(id, 0, x);
    remove_unread(cast);
    return true;
  }

  // Cast(op(x)) → op(Cast(x))
  bool move_up(NodeId id) {
    const Node& node = graph_.node(id);
    if (!commutes_with_rounding(node.op) || has_trait(node.op, Trait::kDropsElements))
      return false;  // a slice's cast rounds less
    const std::optional<DType> narrow = narrowed_to(node.outputs[0]);
    if (!narrow) return false;
    // Up to a parameter or constant nothing is won, and what reads its transpose may want the cast to write that.
    if (!graph_.value(base_of_views(graph_, node.inputs[0])).producer) return false;
    const ValueId x = before(graph_, id).cast(node.inputs[0], *narrow);
    if (replace_casts(id, {x})) return true;
    graph_.remove(graph_.value(x).producer);
    return false;
  }

  // op(Cast(x)) → Cast(op(x))
  bool move_down(NodeId id) {
    const Node& node = graph_.node(id);
    if (!commutes_with_rounding(node.op) || has_trait(node.op, Trait::kRepeatsElements))
      return false;  // an expanded cast writes more
    const ValueId x = widened_from(node.inputs[0]);
    if (!x || is_module_output(graph_, node.inputs[0])) return false;
    // The cast of a tensor that several ops read would be made several times; the pieces of a split are disjoint.
    for (NodeId user : graph_.value(node.inputs[0]).users)
      if (user != id && (!has_trait(node.op, Trait::kDropsElements) || graph_.node(user).op != node.op)) return false;
    const ValueId output = node.outputs[0];
    Builder b = before(graph_, id);
    graph_.replace_uses(output, b.cast(b.op(node.op, {x}, node.attrs), graph_.type(output).dtype));
    remove_unread(id);
    return true;
  }

  // The op on `inputs` takes the place of every cast of its result.
  bool replace_casts(NodeId id, std::vector<ValueId> inputs) {
    const Node& node = graph_.node(id);
    const std::vector<NodeId> casts = graph_.value(node.outputs[0]).users;
    for (NodeId cast : casts)
      if (is_view(node.op) && is_module_output(graph_, graph_.node(cast).outputs[0])) return false;
    const ValueId narrow = before(graph_, id).op(node.op, std::move(inputs), node.attrs);
    bool changed = false;
    for (NodeId cast : casts) {
      const ValueId old = graph_.node(cast).outputs[0];
      if (!is_read(graph_, old) || !may_replace(graph_, old, narrow)) continue;
      graph_.replace_uses(old, narrow);
      remove_unread(cast);
      changed = true;
    }
    if (!changed) graph_.remove(graph_.value(narrow).producer);
    return changed;
  }

  // The node, if nobody reads it any more, and what was only there for it.
  void remove_unread(NodeId id) {
    if (!graph_.is_alive(id) || is_read(graph_, graph_.node(id).outputs[0])) return;
    const std::vector<ValueId> inputs = graph_.node(id).inputs;
    graph_.remove(id);
    for (ValueId input : inputs)
      if (const NodeId above = input ? graph_.value(input).producer : NodeId{})
        if (graph_.is_alive(above) &&
            (has_trait(graph_.node(above).op, Trait::kConvertsDtype) || ops_.contains(graph_.node(above).op)))
          remove_unread(above);
  }

  Graph& graph_;
  std::set<Op> ops_;
};

}  // namespace

bool propagate_casts(Graph& graph, const PassOptions& options) {
  std::set<Op> ops = allowed_ops(options);
  return !ops.empty() && Propagation(graph, std::move(ops)).run();
}

}  // namespace lowtide
