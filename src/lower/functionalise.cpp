// Writes become new values. The graph is walked once and written anew; for every captured value the walk knows its
// current value in the new graph and, for a view, the call that made it from its parent:
//
//   %v = slice %x          a write of %v:  %x' = slice_scatter %x, new    (and so on, up to the root of the chain of
//   views) %w = select %x         a later read of %w or %x: derived again from %x'
#include <algorithm>
#include <optional>
#include <set>

#include "base/check.h"
#include "lower/alias.h"
#include "lower/call.h"
#include "lower/lower.h"

namespace lowtide {

namespace {

// batch_norm in training, with running statistics: it writes them, though its schema does not say so.
bool updates_statistics(const Node& node) {
  return (node.target == "aten::batch_norm.default" && node.attrs.b("training", false)) ||
         (node.target == "aten::instance_norm.default" && node.attrs.b("use_input_stats", false));
}

ValueId find_operand(const Node& node, std::string_view name) {
  const std::vector<std::string>& names = operand_names(node);
  const auto at = std::find(names.begin(), names.end(), name);
  return at == names.end() ? ValueId{} : node.inputs[static_cast<size_t>(at - names.begin())];
}

bool writes(const Node& node) {
  return node.op == Op::kAten && (!functional_target(node.target).empty() || node.target.ends_with(".out") ||
                                  node.target.starts_with("aten::_foreach_") ||
                                  (updates_statistics(node) && find_operand(node, "running_mean")));
}

class Functionaliser {
 public:
  explicit Functionaliser(const Graph& captured)
      : captured_(captured), out_(captured.name()), values_(captured.value_count()) {}

  Graph run() {
    out_.ranges() = captured_.ranges();
    for (const GraphInput& input : captured_.inputs()) {
      const Value& value = captured_.value(input.value);
      State& state = values_[input.value.at()];
      state.current = out_.add_input(value.name, value.type, input.kind, input.requires_grad, input.strides);
      state.is_dense = input.strides.empty();
      note_gradient(state.current, input.requires_grad);
    }
    for (NodeId id : captured_.order()) visit(id);
    for (const GraphOutput& output : captured_.outputs())
      out_.add_output(read(output.value), output.kind, output.target ? first_value(output.target) : ValueId{});
    for (const GraphInput& input : captured_.inputs())
      if (values_[input.value.at()].version > 0)
        out_.add_output(read(input.value), OutputKind::kUpdate, first_value(input.value));
    return std::move(out_);
  }

 private:
  struct State {
    ValueId current;       // in the new graph
    ValueId parent;        // a view: of this captured value …
    NodeId view;           // … by this call (none: the very same elements)
    size_t output = 0;     // … whose output this is
    int version = 0;       // of a root: how often it was written; of a view: the root's version that `current` shows
    bool is_dense = true;  // row-major for sure
    // A reshape of something strided: PyTorch may have copied. Shares memory or not with `doubtful_root` since its
    // version then.
    ValueId doubtful_root;
    int doubtful_version = 0;
    NodeId doubtful_write;  // of a root: a write through such a reshape, which may have changed it
  };

  State& state(ValueId captured) { return values_[captured.at()]; }
  ValueId root(ValueId captured) {
    while (state(captured).parent) captured = state(captured).parent;
    return captured;
  }
  // The new graph's input for a captured input.
  ValueId first_value(ValueId input) const {
    return out_.inputs()[static_cast<size_t>(captured_.value(input).output_index)].value;
  }

  ValueId read(ValueId captured) {
    if (!captured) return {};
    State& found = state(captured);
    const State& base = state(root(captured));
    if (base.doubtful_write) refuse(base.doubtful_write, "it writes through a reshape that may be a view or a copy");
    if (found.doubtful_root && state(root(found.doubtful_root)).version != found.doubtful_version)
      refuse(captured_.value(captured).producer, "what it may be a view of is written before it is read");
    if (found.parent && found.version != base.version) {
      const ValueId parent = read(found.parent);
      found.current = found.view ? emit_view(found, captured, parent) : parent;
      found.version = base.version;
    }
    return found.current;
  }

  // Whether a value of the new graph may have a gradient.
  bool has_gradient(ValueId value) const { return with_gradient_.contains(value); }

  void note_gradient(ValueId value, bool passes) {
    if (value && passes && is_float(out_.type(value).dtype)) with_gradient_.insert(value);
  }

  void note_gradients(NodeId made) {
    const Node& node = out_.node(made);
    const bool passes = !cuts_gradient(node) && std::any_of(node.inputs.begin(), node.inputs.end(),
                                                            [&](ValueId input) { return has_gradient(input); });
    for (ValueId output : node.outputs) note_gradient(output, passes);
  }

  static bool cuts_gradient(const Node& node) {
    return node.target == "aten::detach.default" || node.target == "aten::detach_.default";
  }

  // `value` in the place of `old`, whose gradient goes on from it or is zeros.
  ValueId in_place_of(ValueId old, ValueId value, bool passes, const Node& writer) {
    if (!has_gradient(old)) return value;
    const TensorType type = out_.type(value);
    if (passes) value = call_of("aten::detach.default", {{"self", value}}, {}, type, writer);
    return call_of("lowtide::overwrite.default", {{"value", value}, {"x", old}}, {{"passes", passes}}, type, writer);
  }

  ValueId emit_view(const State& view, ValueId captured, ValueId parent) {
    const Node& node = captured_.node(view.view);
    return emit(view_again(captured_, node, view.output, parent), captured, node.origin);
  }

  // A call with the type and name of a captured value.
  ValueId emit(const CallSpec& call, ValueId like, const Origin& origin) {
    const Value& value = captured_.value(like);
    return emit_typed(call, value.type, value.name, origin);
  }

  ValueId call_of(std::string target, std::vector<std::pair<std::string, ValueId>> operands, Attrs attrs,
                  const TensorType& type, const Node& like) {
    return emit_typed({std::move(target), std::move(operands), std::move(attrs)}, type, {}, like.origin);
  }

  ValueId emit_typed(const CallSpec& call, const TensorType& type, const std::string& name, const Origin& origin) {
    std::vector<ValueId> operands;
    std::vector<std::string> names;
    for (const auto& [name, value] : call.operands) {
      names.push_back(name);
      operands.push_back(value);
    }
    Attrs attrs = call.attrs;
    attrs.set("operands", names);
    const NodeId node = out_.add_node(Op::kAten, operands, {type}, attrs, origin, {}, {name});
    out_.edit(node).target = call.target;
    note_gradients(node);
    return out_.node(node).outputs[0];
  }

  bool requires_grad(ValueId captured) const {
    const GraphInput* input = captured_.find_input(captured);
    return input != nullptr && input->requires_grad;
  }

  // `captured` and everything that shares its memory now reads `written`. An input that requires a gradient is only
  // written where autograd does not see it (capture/aliases.py): the gradient ends there (grad/needs.h).
  void write(ValueId captured, ValueId written, NodeId writer) {
    State& found = state(captured);
    if (found.doubtful_root) state(root(found.doubtful_root)).doubtful_write = writer;
    if (!found.parent) {
      ++found.version;
      if (requires_grad(captured))
        written = emit({"aten::detach.default", {{"self", written}}, {}}, captured, captured_.node(writer).origin);
    } else {
      ValueId base = written;
      if (found.view) {
        const Node& view = captured_.node(found.view);
        const auto inverse = write_through(captured_, view, found.output, read(found.parent), written);
        if (!inverse) refuse(writer, concat("it writes through ", view.target));
        base = emit(*inverse, found.parent, captured_.node(writer).origin);
        // Past autograd: what it knows of the tensor stays as it was. An input's gradient is that of what it became.
        if (cuts_gradient(view) && !requires_grad(root(captured)))
          base = in_place_of(read(found.parent), base, true, captured_.node(writer));
      }
      write(found.parent, base, writer);
      const ValueId from = root(captured);
      found.version = state(from).version - (requires_grad(from) ? 1 : 0);  // there, a later read derives it again
    }
    found.current = written;
  }

  [[noreturn]] void refuse(NodeId node, std::string_view reason) const {
    LT_USER_FAIL(ErrorKind::kUnsupported, describe_call(captured_.node(node)), ": ", reason);
  }

  void visit(NodeId id) {
    const Node& node = captured_.node(id);
    if (!writes(node)) {
      copy(id);
      if (node.op == Op::kAten) note_aliases(id);
    } else if (updates_statistics(node)) {
      normalise(id);
    } else {
      write_in_place(id);
    }
  }

  // The call on current values; its outputs are the captured ones.
  void copy(NodeId id) {
    const Node& node = captured_.node(id);
    std::vector<ValueId> operands;
    bool dense = true;
    for (ValueId input : node.inputs) {
      operands.push_back(read(input));
      if (input) dense = dense && state(input).is_dense;
    }
    const NodeId copied = out_.add_copy(captured_, id, std::move(operands));
    note_gradients(copied);
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (!node.outputs[i]) continue;
      state(node.outputs[i]).current = out_.node(copied).outputs[i];
      state(node.outputs[i]).is_dense = dense;
    }
  }

  // Row-major elements stay row-major under these; other views stride over them.
  static bool keeps_density(const Node& node) {
    if (keeps_all_in_order(node)) return true;
    const bool cuts_first = node.target.starts_with("aten::slice.") || node.target.starts_with("aten::select.");
    return cuts_first && node.attrs.i("dim", 0) == 0 && node.attrs.i("step", 1) == 1;
  }

  void note_aliases(NodeId id) {
    const Node& node = captured_.node(id);
    const Aliasing kind = aliasing(captured_, node);
    if (kind == Aliasing::kNone) return;
    const ValueId parent = node.inputs[0];
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (!node.outputs[i]) continue;
      State& output = state(node.outputs[i]);
      if (kind == Aliasing::kMaybe && !state(parent).is_dense) {
        output.doubtful_root = parent;
        output.doubtful_version = state(root(parent)).version;
        output.is_dense = false;
        continue;
      }
      output.parent = parent;
      output.view = id;
      output.output = i;
      output.version = state(root(parent)).version;
      output.is_dense =
          state(parent).is_dense && (kind == Aliasing::kMaybe || node.attrs.has("shares") || keeps_density(node));
    }
  }

  // Views in place (unsqueeze_ …) change no element: what comes out is a view of what went in.
  static bool is_view_in_place(std::string_view functional) {
    for (std::string_view name : {"aten::squeeze.", "aten::unsqueeze.", "aten::transpose.", "aten::t.",
                                  "aten::swapaxes.", "aten::swapdims.", "aten::detach."})
      if (functional.starts_with(name)) return true;
    return false;
  }

  static bool writes_all(std::string_view functional) {
    return functional.starts_with("aten::zero.") || functional.starts_with("aten::fill.") ||
           functional.starts_with("aten::copy.");
  }

  // Whether a tensor is all of the memory that it lies in.
  bool is_whole(ValueId captured) {
    for (; state(captured).parent; captured = state(captured).parent) {
      if (!state(captured).view || keeps_all_in_order(captured_.node(state(captured).view))) continue;
      const bool is_slice = captured_.node(state(captured).view).target == "aten::slice.Tensor";
      if (!is_slice || captured_.type(captured).shape != captured_.type(state(captured).parent).shape) return false;
    }
    return true;
  }

  void write_in_place(NodeId id) {
    const Node& node = captured_.node(id);
    const std::string functional = functional_target(node.target);
    if (functional.empty()) refuse(id, "it writes an argument");
    for (std::string_view name : {"aten::resize", "aten::set.", "aten::as_strided."})
      if (functional.starts_with(name)) refuse(id, "it changes the storage of a tensor");
    const ValueId self = node.inputs.empty() ? ValueId{} : node.inputs[0];
    LT_USER_CHECK(ErrorKind::kInvalidGraph, self.valid() && !node.outputs.empty(), describe_call(node),
                  ": expected a tensor that it writes, and that tensor as its output");
    CallSpec call{functional, {}, node.attrs};
    const std::vector<std::string>& names = operand_names(node);
    for (size_t i = 0; i < node.inputs.size(); ++i) call.operands.emplace_back(names[i], read(node.inputs[i]));
    // The one family whose forms name their argument differently: dropout_(self, …), dropout(input, …).
    if (functional.find("dropout.") != std::string::npos) call.operands[0].first = "input";
    const bool is_view = is_view_in_place(functional);
    ValueId result = emit(call, is_view && node.outputs[0] ? node.outputs[0] : self, node.origin);
    if (writes_all(functional) && is_whole(self)) result = in_place_of(call.operands[0].second, result, false, node);
    if (!is_view) write(self, result, id);
    // The output is the tensor that was written.
    if (!node.outputs[0]) return;
    State& output = state(node.outputs[0]);
    output.current = result;
    output.parent = self;
    output.version = state(root(self)).version - (requires_grad(root(self)) ? 1 : 0);
    output.is_dense = state(self).is_dense && (!is_view || functional.starts_with("aten::detach"));
    if (is_view) output.view = id;
  }

  // batch_norm(running_mean, running_var, …) → its functional form, whose outputs 3 and 4 are the new statistics.
  void normalise(NodeId id) {
    const Node& node = captured_.node(id);
    if (node.target == "aten::instance_norm.default") return normalise_instances(id);
    if (captured_.type(node.inputs[0]).shape.size() < 2) refuse(id, "it normalises fewer than two dims");
    const ValueId mean = find_operand(node, "running_mean"), variance = find_operand(node, "running_var");
    LT_USER_CHECK(ErrorKind::kInvalidGraph, variance.valid(), describe_call(node),
                  ": expected running_var beside running_mean");
    std::vector<ValueId> operands;
    for (ValueId input : node.inputs) operands.push_back(read(input));
    Attrs attrs = node.attrs;
    attrs.erase("cudnn_enabled");
    const TensorType statistics = captured_.type(mean);
    const NodeId functional = out_.add_node(
        Op::kAten, operands, {captured_.type(node.outputs[0]), {}, {}, statistics, captured_.type(variance)}, attrs,
        node.origin, {}, {captured_.value(node.outputs[0]).name, "", "", "new_mean", "new_variance"},
        {true, false, false, true, true});
    out_.edit(functional).target = "aten::_native_batch_norm_legit_functional.default";
    note_gradients(functional);
    const std::vector<ValueId>& outputs = out_.node(functional).outputs;
    state(node.outputs[0]).current = outputs[0];
    write(mean, outputs[3], id);
    write(variance, outputs[4], id);
  }

  // instance_norm without its running statistics, which take in the mean over the batch of each instance's.
  void normalise_instances(NodeId id) {
    const Node& node = captured_.node(id);
    const ValueId input = read(find_operand(node, "input"));
    const double momentum = node.attrs.f("momentum");
    CallSpec call{node.target, {{"input", input}}, node.attrs};
    for (std::string_view name : {"weight", "bias"})
      if (const ValueId found = find_operand(node, name)) call.operands.emplace_back(name, read(found));
    state(node.outputs[0]).current = emit(call, node.outputs[0], node.origin);
    const Shape& shape = captured_.type(node.inputs[0]).shape;
    std::vector<Dim> inner;
    for (size_t axis = 2; axis < shape.size(); ++axis) inner.push_back(Dim(static_cast<int64_t>(axis)));
    const ValueId detached =
        call_of("aten::detach.default", {{"self", input}}, {}, captured_.type(node.inputs[0]), node);
    for (const bool is_mean : {true, false}) {
      const ValueId running = find_operand(node, is_mean ? "running_mean" : "running_var");
      const TensorType type = captured_.type(running);
      Attrs over_instance{{"dim", inner}, {"keepdim", false}};
      if (!is_mean) over_instance.set("correction", Dim(1));
      const ValueId each = call_of(is_mean ? "aten::mean.dim" : "aten::var.correction", {{"self", detached}},
                                   over_instance, {type.dtype, {shape[0], shape[1]}}, node);
      const ValueId mean =
          call_of("aten::mean.dim", {{"self", each}}, {{"dim", Shape{0}}, {"keepdim", false}}, type, node);
      const ValueId old = call_of("aten::mul.Tensor", {{"self", read(running)}}, {{"other", 1 - momentum}}, type, node);
      const ValueId fresh = call_of("aten::mul.Tensor", {{"self", mean}}, {{"other", momentum}}, type, node);
      write(running, call_of("aten::add.Tensor", {{"self", old}, {"other", fresh}}, {{"alpha", Dim(1)}}, type, node),
            id);
    }
  }

  const Graph& captured_;
  Graph out_;
  std::vector<State> values_;  // by captured value
  std::set<ValueId> with_gradient_;
};

}  // namespace

void functionalise(Graph& graph) {
  const bool mutates =
      std::any_of(graph.order().begin(), graph.order().end(), [&](NodeId id) { return writes(graph.node(id)); });
  if (mutates) graph = Functionaliser(graph).run();
}

}  // namespace lowtide
