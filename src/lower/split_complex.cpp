#include "lower/split_complex.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>

#include "lower/call.h"

namespace lowtide {

namespace {

struct Pair {
  ValueId real;
  ValueId imag;  // none: a real number
};

DType part_of(DType dtype) { return dtype == DType::kC128 ? DType::kF64 : DType::kF32; }

// Calls that do the same to both parts: they move elements or add them up.
constexpr std::string_view kAlike[] = {"aten::view.default",         "aten::reshape.default",
                                       "aten::_unsafe_view.default", "aten::flatten.using_ints",
                                       "aten::unflatten.int",        "aten::transpose.int",
                                       "aten::permute.default",      "aten::t.default",
                                       "aten::movedim.int",          "aten::movedim.intlist",
                                       "aten::swapaxes.default",     "aten::unsqueeze.default",
                                       "aten::squeeze.default",      "aten::squeeze.dim",
                                       "aten::squeeze.dims",         "aten::expand.default",
                                       "aten::slice.Tensor",         "aten::select.int",
                                       "aten::narrow.default",       "aten::split.Tensor",
                                       "aten::split.sizes",          "aten::split_with_sizes.default",
                                       "aten::chunk.default",        "aten::unbind.int",
                                       "aten::cat.default",          "aten::stack.default",
                                       "aten::clone.default",        "aten::contiguous.default",
                                       "aten::detach.default",       "aten::alias.default",
                                       "aten::index_select.default", "aten::index.Tensor",
                                       "aten::embedding.default",    "aten::repeat.default",
                                       "aten::flip.default",         "aten::roll.default",
                                       "aten::sum.default",          "aten::sum.dim_IntList",
                                       "aten::mean.default",         "aten::mean.dim",
                                       "aten::neg.default",          "aten::to.dtype",
                                       "aten::to.dtype_layout",      "aten::to.device",
                                       "aten::_to_copy.default",     "aten::expand_as.default"};

// What writes in place become. PyTorch has no gradients of these with complex numbers.
constexpr std::string_view kScatters[] = {"aten::slice_scatter.default", "aten::select_scatter.default",
                                          "aten::copy.default"};

bool is_one_of(std::string_view target, std::span<const std::string_view> targets) {
  return std::find(targets.begin(), targets.end(), target) != targets.end();
}

class Splitter {
 public:
  explicit Splitter(const Graph& captured)
      : captured_(captured), out_(captured.name()), whole_(captured.value_count()) {}

  Graph run() {
    out_.ranges() = captured_.ranges();
    for (const GraphInput& input : captured_.inputs()) {
      const Value& value = captured_.value(input.value);
      whole_[input.value.at()] = out_.add_input(value.name, value.type, input.kind, input.requires_grad, input.strides);
    }
    for (NodeId id : captured_.order())
      if (!split(id)) copy(id);
    for (const GraphOutput& output : captured_.outputs())
      out_.add_output(whole(output.value), output.kind, output.target ? whole(output.target) : ValueId{});
    return std::move(out_);
  }

 private:
  bool is_complex_value(ValueId value) const { return value && is_complex(captured_.type(value).dtype); }
  bool has_pair(ValueId value) const { return value && pairs_.contains(value); }

  // ---- calls of the new graph

  ValueId call(std::string_view target, std::vector<ValueId> operands, std::vector<std::string> names, TensorType type,
               const Node& like, Attrs attrs = {}, std::string name = {}) {
    attrs.set("operands", std::move(names));
    if (name.empty()) name = target.substr(6, target.find('.') - 6);  // between aten:: and the overload
    const NodeId node = out_.add_node(Op::kAten, std::move(operands), {std::move(type)}, std::move(attrs), like.origin,
                                      {}, {std::move(name)});
    out_.edit(node).target = target;
    return out_.node(node).outputs[0];
  }

  ValueId binary(std::string_view target, ValueId a, ValueId b, const TensorType& type, const Node& like) {
    Attrs attrs;
    if (target != "aten::mul.Tensor") attrs.set("alpha", Dim(1));
    return call(target, {a, b}, {"self", "other"}, type, like, std::move(attrs));
  }
  ValueId mul(ValueId a, ValueId b, const TensorType& type, const Node& like) {
    return binary("aten::mul.Tensor", a, b, type, like);
  }
  ValueId negated(ValueId x, const TensorType& type, const Node& like) {
    return call("aten::neg.default", {x}, {"self"}, type, like);
  }
  ValueId scaled(ValueId x, double factor, const TensorType& type, const Node& like) {
    return call("aten::mul.Tensor", {x}, {"self"}, type, like, {{"other", factor}});
  }
  ValueId expanded(ValueId x, const TensorType& type, const Node& like) {
    if (out_.type(x).shape == type.shape) return x;
    return call("aten::expand.default", {x}, {"self"}, {out_.type(x).dtype, type.shape}, like,
                {{"size", type.shape}, {"implicit", false}});
  }

  // One of the numbers along the last dim of view_as_real.
  ValueId selected(ValueId pairs, int64_t index, const Node& like) {
    TensorType type = out_.type(pairs);
    type.shape.pop_back();
    return call("aten::select.int", {pairs}, {"self"}, type, like, {{"dim", Dim(-1)}, {"index", Dim(index)}});
  }

  // Of what view_as_real gives. Braces: one after the other.
  Pair taken_apart(ValueId numbers, const Node& like) {
    return Pair{selected(numbers, 0, like), selected(numbers, 1, like)};
  }

  // ---- values in both forms

  // The value as the new graph's calls of PyTorch read it.
  ValueId whole(ValueId captured) {
    if (!captured) return {};
    if (const ValueId found = whole_[captured.at()]) return found;
    const Value& value = captured_.value(captured);
    const Node& node = captured_.node(value.producer);
    if (std::none_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) { return is_complex_value(input); })) {
      copy(value.producer);  // it was made of real ones
      return whole_[captured.at()];
    }
    return whole_[captured.at()] = call("aten::complex.default", {pairs_.at(captured).real, pairs_.at(captured).imag},
                                        {"real", "imag"}, value.type, node, {}, value.name);
  }

  Pair pair_of(ValueId captured, const Node& reader) {
    const auto at = pairs_.find(captured);
    if (at != pairs_.end()) return at->second;
    TensorType type = captured_.type(captured);
    type.dtype = part_of(type.dtype);
    type.shape.push_back(2);
    const ValueId numbers = call("aten::view_as_real.default", {whole(captured)}, {"self"}, type, reader);
    return pairs_[captured] = taken_apart(numbers, reader);
  }

  // ---- calls that know pairs

  TensorType part_type(const Node& node, size_t output = 0) const {
    TensorType type = captured_.type(node.outputs[output]);
    if (is_complex(type.dtype)) type.dtype = part_of(type.dtype);
    return type;
  }

  bool set(const Node& node, const Pair& pair, size_t output = 0) {
    const std::string& name = captured_.value(node.outputs[output]).name;
    if (is_new(pair.real)) out_.rename(pair.real, name + "_real");
    if (is_new(pair.imag)) out_.rename(pair.imag, name + "_imag");
    pairs_[node.outputs[output]] = pair;
    return true;
  }
  // Made by the call that is being split.
  bool is_new(ValueId value) const { return value.at() >= first_new_; }
  bool set_real(const Node& node, ValueId value) {
    whole_[node.outputs[0].at()] = value;
    return true;
  }

  bool split(NodeId id) {
    const Node& node = captured_.node(id);
    if (node.op != Op::kAten || node.inputs.empty() || node.outputs.empty() || !node.outputs[0]) return false;
    first_new_ = out_.value_count();
    if (makes_pair(node)) return true;
    if (is_one_of(node.target, kScatters)) return do_alike(node);
    if (std::none_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) { return has_pair(input); }))
      return false;
    if (is_one_of(node.target, kAlike)) return do_alike(node);
    const auto is = [&](std::string_view name) { return node.target == name; };
    if (is("aten::mul.Tensor") || is("aten::mul.Scalar")) return multiply(node);
    if (is("aten::div.Tensor") || is("aten::div.Scalar")) return divide(node);
    if (is("aten::add.Tensor") || is("aten::sub.Tensor")) return add(node);
    if (is("aten::resolve_conj.default") || is("aten::resolve_neg.default")) {
      return set(node, pair_of(node.inputs[0], node));
    }
    if (is("aten::_conj.default") || is("aten::conj.default") || is("aten::conj_physical.default")) {
      const Pair x = pair_of(node.inputs[0], node);
      return set(node, {x.real, negated(x.imag, part_type(node), node)});
    }
    if (is("aten::real.default")) return set_real(node, pair_of(node.inputs[0], node).real);
    if (is("aten::imag.default")) return set_real(node, pair_of(node.inputs[0], node).imag);
    if (is("aten::view_as_real.default")) {
      const Pair x = pair_of(node.inputs[0], node);
      return set_real(node, call("aten::stack.default", {x.real, x.imag}, {"tensors", "tensors"}, part_type(node), node,
                                 {{"dim", Dim(-1)}}, captured_.value(node.outputs[0]).name));
    }
    return false;
  }

  // Calls whose operands are real.
  bool makes_pair(const Node& node) {
    const TensorType type = part_type(node);
    if (node.target == "aten::view_as_complex.default") {
      const Pair parts = taken_apart(whole(node.inputs[0]), node);
      return set(node, parts);
    }
    if (node.target == "aten::complex.default" && node.inputs.size() == 2)
      return set(node, {expanded(whole(node.inputs[0]), type, node), expanded(whole(node.inputs[1]), type, node)});
    if (node.target == "aten::polar.default" && node.inputs.size() == 2) {
      const ValueId length = whole(node.inputs[0]), angle = whole(node.inputs[1]);
      const TensorType& turned = out_.type(angle);
      const ValueId cos = call("aten::cos.default", {angle}, {"self"}, turned, node);
      const ValueId sin = call("aten::sin.default", {angle}, {"self"}, turned, node);
      return set(node, {mul(length, cos, type, node), mul(length, sin, type, node)});
    }
    return false;
  }

  Pair of_real(ValueId captured, const Node& reader) {
    const ValueId real = whole(captured);
    return Pair{real, call("aten::zeros_like.default", {real}, {"self"}, out_.type(real), reader)};
  }

  bool do_alike(const Node& node) {
    for (ValueId output : node.outputs)
      if (output && !is_complex_value(output)) return false;
    const bool joins = node.target == "aten::cat.default" || node.target == "aten::stack.default";
    const bool scatters = is_one_of(node.target, kScatters);
    for (ValueId input : node.inputs)
      if (joins && !is_complex_value(input)) return false;
    std::array<std::vector<ValueId>, 2> made;
    std::vector<Pair> operands;
    for (ValueId input : node.inputs) {
      if (is_complex_value(input))
        operands.push_back(pair_of(input, node));
      else
        operands.push_back(scatters ? of_real(input, node) : Pair{whole(input), whole(input)});
    }
    for (const bool imaginary : {false, true}) {
      std::vector<ValueId> inputs;
      for (const Pair& operand : operands) inputs.push_back(imaginary ? operand.imag : operand.real);
      std::vector<TensorType> types;
      std::vector<bool> wanted;
      for (size_t i = 0; i < node.outputs.size(); ++i) {
        wanted.push_back(node.outputs[i].valid());
        types.push_back(wanted.back() ? part_type(node, i) : TensorType{});
      }
      Attrs attrs = node.attrs;
      if (attrs.has("dtype")) attrs.set("dtype", part_type(node).dtype);
      const NodeId part = out_.add_node(node.op, inputs, types, attrs, node.origin, {}, {}, wanted);
      out_.edit(part).target = node.target;
      made[imaginary] = out_.node(part).outputs;
    }
    for (size_t i = 0; i < node.outputs.size(); ++i)
      if (node.outputs[i]) set(node, {made[0][i], made[1][i]}, i);
    return true;
  }

  // An operand of arithmetic; none of its parts where the argument is a Python number.
  Pair term(const Node& node, std::string_view name) {
    const std::vector<std::string>& names = operand_names(node);
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i] != name) continue;
      return is_complex_value(node.inputs[i]) ? pair_of(node.inputs[i], node) : Pair{whole(node.inputs[i]), {}};
    }
    return {};
  }

  bool multiply(const Node& node) {
    const TensorType type = part_type(node);
    Pair a = term(node, "self"), b = term(node, "other");
    if (!b.real) return multiply_by_number(node, a, type);
    if (!a.imag) std::swap(a, b);
    if (!b.imag) return set(node, {mul(a.real, b.real, type, node), mul(a.imag, b.real, type, node)});
    const Pair straight{mul(a.real, b.real, type, node), mul(a.imag, b.imag, type, node)};
    const Pair crossed{mul(a.real, b.imag, type, node), mul(a.imag, b.real, type, node)};
    return set(node, combined(straight, crossed, type, node));
  }

  // The difference of the first two, the sum of the others.
  Pair combined(const Pair& straight, const Pair& crossed, const TensorType& type, const Node& like) {
    return Pair{binary("aten::sub.Tensor", straight.real, straight.imag, type, like),
                binary("aten::add.Tensor", crossed.real, crossed.imag, type, like)};
  }

  bool multiply_by_number(const Node& node, const Pair& a, const TensorType& type) {
    const auto* number = node.attrs.find("other");
    const auto* parts = number != nullptr ? std::get_if<std::vector<double>>(number) : nullptr;
    if (parts == nullptr) return by_number(node, a, type);
    const double re = parts->at(0), im = parts->at(1);
    const Pair straight{scaled(a.real, re, type, node), scaled(a.imag, im, type, node)};
    const Pair crossed{scaled(a.real, im, type, node), scaled(a.imag, re, type, node)};
    return set(node, combined(straight, crossed, type, node));
  }

  // Both parts times, or over, a real number.
  bool by_number(const Node& node, const Pair& a, const TensorType& type) {
    const auto part = [&](ValueId x) { return call(node.target, {x}, {"self"}, type, node, node.attrs); };
    return set(node, {part(a.real), part(a.imag)});
  }

  bool divide(const Node& node) {
    const TensorType type = part_type(node);
    const Pair a = term(node, "self"), b = term(node, "other");
    if (!b.real)
      return !std::holds_alternative<std::vector<double>>(*node.attrs.find("other")) && by_number(node, a, type);
    if (b.imag) return false;
    const auto part = [&](ValueId x) {
      return call(node.target, {x, b.real}, {"self", "other"}, type, node, node.attrs);
    };
    return set(node, {part(a.real), part(a.imag)});
  }

  bool add(const Node& node) {
    const TensorType type = part_type(node);
    const Pair a = term(node, "self"), b = term(node, "other");
    if (std::holds_alternative<std::vector<double>>(*node.attrs.find("alpha"))) return false;
    if (!b.real) return add_number(node, a, type);
    const auto sum = [&](ValueId x, ValueId y) {
      return call(node.target, {x, y}, {"self", "other"}, type, node, node.attrs);
    };
    if (a.imag && b.imag) return set(node, {sum(a.real, b.real), sum(a.imag, b.imag)});
    if (a.imag) return set(node, {sum(a.real, b.real), expanded(a.imag, type, node)});
    return false;
  }

  bool add_number(const Node& node, const Pair& a, const TensorType& type) {
    const auto* parts = std::get_if<std::vector<double>>(node.attrs.find("other"));
    const auto part = [&](ValueId x, double number) {
      Attrs attrs = node.attrs;
      attrs.set("other", number);
      return call(node.target, {x}, {"self"}, type, node, attrs);
    };
    if (parts != nullptr) return set(node, {part(a.real, parts->at(0)), part(a.imag, parts->at(1))});
    return set(node, {call(node.target, {a.real}, {"self"}, type, node, node.attrs), a.imag});
  }

  // The call as it was, on whole numbers.
  void copy(NodeId id) {
    const Node& node = captured_.node(id);
    std::vector<ValueId> operands;
    for (ValueId input : node.inputs) operands.push_back(whole(input));
    const NodeId copied = out_.add_copy(captured_, id, std::move(operands));
    for (size_t i = 0; i < node.outputs.size(); ++i)
      if (node.outputs[i]) whole_[node.outputs[i].at()] = out_.node(copied).outputs[i];
  }

  const Graph& captured_;
  Graph out_;
  size_t first_new_ = 0;           // value of the new graph, when the call that is being split began
  std::vector<ValueId> whole_;     // by captured value; none: it is a pair, and no call has asked for the whole
  std::map<ValueId, Pair> pairs_;  // captured value → its parts
};

}  // namespace

void split_complex(Graph& graph) {
  const bool has_complex = std::any_of(graph.order().begin(), graph.order().end(), [&](NodeId id) {
    const std::vector<ValueId>& outputs = graph.node(id).outputs;
    return std::any_of(outputs.begin(), outputs.end(),
                       [&](ValueId output) { return output && is_complex(graph.type(output).dtype); });
  });
  if (has_complex) graph = Splitter(graph).run();
}

}  // namespace lowtide
