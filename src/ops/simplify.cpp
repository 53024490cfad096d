#include "ops/simplify.h"

#include <algorithm>
#include <set>

#include "ir/reads.h"
#include "ops/builder.h"

namespace lowtide {

namespace {

// What a rule sees: the node, who made its operands, and a builder that writes before it.
class SimplifyArgs {
 public:
  SimplifyArgs(Graph& graph, NodeId id, IndexForms& forms) : graph_(graph), id_(id), forms_(forms) {}

  Builder b() const { return before(graph_, id_); }
  const Attrs& attrs() const { return graph_.node(id_).attrs; }
  const std::vector<ValueId>& inputs() const { return graph_.node(id_).inputs; }
  ValueId in(size_t operand) const { return inputs()[operand]; }
  const TensorType& type(ValueId value) const { return graph_.type(value); }
  const Shape& shape(ValueId value) const { return graph_.type(value).shape; }
  ValueId out() const { return graph_.node(id_).outputs[0]; }

  // The producer of `value` if it is one of `ops`; its attributes and first operand.
  NodeId made_by(ValueId value, std::initializer_list<Op> ops) const { return producer(graph_, value, ops); }
  const Attrs& attrs_of(NodeId node) const { return graph_.node(node).attrs; }
  ValueId source(NodeId node) const { return operand(graph_, node, 0); }

  bool is_all(size_t operand, bool expected) const { return forms_.is_all(in(operand), expected); }
  bool are_all(const char* name, int64_t number) const {
    const Shape& values = attrs().ints(name);
    return std::all_of(values.begin(), values.end(), [&](const Dim& value) { return value.is(number); });
  }

  // Whether the gradient, not built yet, will reach an input through the operand.
  bool gradient_passes(size_t operand) const { return !gradient_goes_to(in(operand), 1).empty(); }
  // The inputs that it will reach through the value; of more than `most`, some.
  std::set<ValueId> gradient_goes_to(ValueId value, size_t most = SIZE_MAX) const {
    std::set<ValueId> seen, found;
    if (graph_.yield()) return found;
    std::vector<ValueId> pending = {value};
    while (!pending.empty() && found.size() < most) {
      const ValueId next = pending.back();
      pending.pop_back();
      if (!next || !is_float(graph_.type(next).dtype) || !seen.insert(next).second) continue;
      const NodeId id = graph_.value(next).producer;
      if (!id && graph_.find_input(next)->requires_grad) found.insert(next);
      if (!id || has_trait(graph_.node(id).op, Trait::kBlocksGradient)) continue;
      const std::vector<ValueId>& inputs = graph_.node(id).inputs;
      pending.insert(pending.end(), inputs.begin(), inputs.end());
    }
    return found;
  }

 private:
  Graph& graph_;
  NodeId id_;
  IndexForms& forms_;
};

ValueId first_if(const SimplifyArgs& a, bool idle) { return idle ? a.in(0) : ValueId{}; }

// ---- the rules that ops.def names: parameters under which an op gives its operand back

ValueId simplify_same(const SimplifyArgs& a) { return a.in(0); }
ValueId simplify_copy(const SimplifyArgs& a) { return first_if(a, !a.attrs().b("keeps", false)); }
ValueId simplify_overwrite(const SimplifyArgs& a) { return first_if(a, !a.gradient_passes(1)); }
ValueId simplify_dropout(const SimplifyArgs& a) { return first_if(a, a.attrs().f("ratio") == 0); }
ValueId simplify_clip(const SimplifyArgs& a) { return first_if(a, !a.attrs().has("min") && !a.attrs().has("max")); }
ValueId simplify_pad(const SimplifyArgs& a) { return first_if(a, a.are_all("pads", 0)); }
ValueId simplify_tile(const SimplifyArgs& a) { return first_if(a, a.are_all("repeats", 1)); }
ValueId simplify_roll(const SimplifyArgs& a) { return first_if(a, a.are_all("shifts", 0)); }
ValueId simplify_repeat_interleave(const SimplifyArgs& a) { return first_if(a, a.attrs().dim("repeats").is(1)); }

// Concat of x and tensors without elements → Concat of the rest. One stays, until the gradient is built, that leads to
// an input to which none of the rest does: PyTorch gives that one zeros (an expert without rows), and nothing would
// give it none.
ValueId simplify_concat(const SimplifyArgs& a) {
  const Dim axis = a.attrs().dim("axis");
  if (a.inputs().size() == 1) return a.in(0);
  std::vector<bool> stays;
  for (ValueId input : a.inputs()) stays.push_back(!a.shape(input)[static_cast<size_t>(axis.constant())].is(0));
  if (std::find(stays.begin(), stays.end(), false) == stays.end()) return {};
  std::set<ValueId> reached;
  for (size_t i = 0; i < stays.size(); ++i)
    if (stays[i]) reached.merge(a.gradient_goes_to(a.in(i)));
  std::vector<ValueId> pieces;
  for (size_t i = 0; i < stays.size(); ++i) {
    std::set<ValueId> more = stays[i] ? std::set<ValueId>{} : a.gradient_goes_to(a.in(i));
    const size_t before = reached.size();
    reached.merge(more);
    if (stays[i] || reached.size() > before) pieces.push_back(a.in(i));
  }
  if (pieces.empty() || pieces.size() == a.inputs().size()) return {};
  return pieces.size() == 1 ? pieces[0] : a.b().op(Op::kConcat, std::move(pieces), {{"axis", axis}});
}

// Every number of `from` is one of `to`.
bool holds_exactly(DType from, DType to) {
  if (from == to) return true;
  if (is_float(from)) return to == DType::kF64 || (to == DType::kF32 && from != DType::kF64);
  if (from == DType::kBool) return true;
  if (is_float(to)) return to == DType::kF64 ? from != DType::kI64 : size_bytes(from) < size_bytes(to);
  if (to == DType::kBool || to == DType::kU8) return false;
  return from == DType::kU8 ? size_bytes(to) > 1 : size_bytes(to) >= size_bytes(from);
}

// Cast to x's own dtype → x; Cast(Cast(x)) → Cast(x) if the first loses nothing
ValueId simplify_cast(const SimplifyArgs& a) {
  const DType to = a.attrs().t("to");
  if (to == a.type(a.in(0)).dtype) return a.in(0);
  const NodeId inner = a.made_by(a.in(0), {Op::kCast});
  if (!inner || !holds_exactly(a.type(a.source(inner)).dtype, a.attrs_of(inner).t("to"))) return {};
  return a.b().cast(a.source(inner), to);
}

// ---- masks

// `neutral` and x, in either order → x; of the same x twice → x
ValueId simplify_junction(const SimplifyArgs& a, bool neutral) {
  for (size_t i = 0; i < 2; ++i)
    if (a.is_all(i, neutral)) return a.b().expand(a.in(1 - i), a.shape(a.out()));
  return first_if(a, a.in(0) == a.in(1));
}
ValueId simplify_and(const SimplifyArgs& a) { return simplify_junction(a, true); }
ValueId simplify_or(const SimplifyArgs& a) { return simplify_junction(a, false); }

// Where with a condition that never varies → the operand that it always takes. The other one may not lead to an input
// that requires a gradient: PyTorch gives that one zeros, and nothing would give it none.
ValueId simplify_where(const SimplifyArgs& a) {
  for (const bool branch : {true, false})
    if (a.is_all(0, branch) && !a.gradient_passes(branch ? 2 : 1))
      return a.b().expand(a.in(branch ? 1 : 2), a.shape(a.out()));
  return {};
}

// ---- views that show nothing new, and chains of views

// Reshape of a Reshape, Squeeze or Unsqueeze → Reshape; to x's own shape → x
ValueId simplify_reshape(const SimplifyArgs& a) {
  ValueId x = a.in(0);
  while (const NodeId inner = a.made_by(x, {Op::kReshape, Op::kSqueeze, Op::kUnsqueeze})) x = a.source(inner);
  if (a.shape(x) == a.attrs().ints("shape")) return x;
  return x == a.in(0) ? ValueId{} : a.b().reshape(x, a.attrs().ints("shape"));
}

// Transpose of a Transpose → one; the identity → x
ValueId simplify_transpose(const SimplifyArgs& a) {
  std::vector<int64_t> perm = a.attrs().is("perm");
  ValueId x = a.in(0);
  if (const NodeId inner = a.made_by(x, {Op::kTranspose})) {
    const std::vector<int64_t> first = a.attrs_of(inner).is("perm");
    for (int64_t& axis : perm) axis = first[static_cast<size_t>(axis)];
    x = a.source(inner);
  }
  if (std::is_sorted(perm.begin(), perm.end())) return x;
  return x == a.in(0) ? ValueId{} : a.b().transpose(x, std::move(perm));
}

// Expand of an Expand → one; to x's own shape → x
ValueId simplify_expand(const SimplifyArgs& a) {
  ValueId x = a.in(0);
  while (const NodeId inner = a.made_by(x, {Op::kExpand})) x = a.source(inner);
  if (a.shape(x) == a.attrs().ints("shape")) return x;
  return x == a.in(0) ? ValueId{} : a.b().expand(x, a.attrs().ints("shape"));
}

// Slice of everything → x; of a Slice on the same axis → one (steps of 1)
ValueId simplify_slice(const SimplifyArgs& a) {
  const int64_t axis = a.attrs().i("axis");
  const Dim start = a.attrs().dim("start"), end = a.attrs().dim("end"), step = a.attrs().dim("step");
  if (start.is(0) && step.is(1) && end == a.shape(a.in(0))[static_cast<size_t>(axis)]) return a.in(0);
  const NodeId inner = a.made_by(a.in(0), {Op::kSlice});
  if (!inner || !step.is(1)) return {};
  const Attrs& first = a.attrs_of(inner);
  if (first.i("axis") != axis || !first.dim("step").is(1)) return {};
  const Dim shift = first.dim("start");
  return a.b().slice(a.source(inner), axis, shift + start, shift + end);
}

// Unsqueeze that undoes a Squeeze → x; of an Unsqueeze → one
ValueId simplify_unsqueeze(const SimplifyArgs& a) {
  const std::vector<int64_t> axes = a.attrs().is("axes");
  if (axes.empty()) return a.in(0);
  if (const NodeId inner = a.made_by(a.in(0), {Op::kSqueeze}))
    if (a.shape(a.source(inner)) == a.shape(a.out())) return a.source(inner);
  const NodeId inner = a.made_by(a.in(0), {Op::kUnsqueeze});
  if (!inner) return {};
  // Where the inner node's dims stand in the result: the positions that `axes` leaves free, in order.
  const size_t rank = a.shape(a.out()).size();
  std::vector<int64_t> free;
  for (size_t i = 0; i < rank; ++i)
    if (!std::binary_search(axes.begin(), axes.end(), static_cast<int64_t>(i))) free.push_back(static_cast<int64_t>(i));
  std::vector<int64_t> merged = axes;
  for (int64_t axis : a.attrs_of(inner).is("axes")) merged.push_back(free[static_cast<size_t>(axis)]);
  std::sort(merged.begin(), merged.end());
  return a.b().unsqueeze(a.source(inner), std::move(merged));
}

// Squeeze that undoes an Unsqueeze → x
ValueId simplify_squeeze(const SimplifyArgs& a) {
  if (a.attrs().ints("axes").empty()) return a.in(0);
  const NodeId inner = a.made_by(a.in(0), {Op::kUnsqueeze, Op::kReshape});
  if (!inner) return {};
  return a.shape(a.source(inner)) == a.shape(a.out()) ? a.source(inner) : ValueId{};
}

using SimplifyFunction = ValueId (*)(const SimplifyArgs&);

SimplifyFunction simplify_function(Op op) {
  switch (op) {
#define LT_OP(...)
#define LT_SIMPLIFY(name, rule) \
  case Op::k##name: return rule;
#include "opset/ops.def"
    default: return nullptr;
  }
}

}  // namespace

ValueId simplify(Graph& graph, NodeId node, IndexForms& forms) {
  const SimplifyFunction rule = simplify_function(graph.node(node).op);
  return rule ? rule(SimplifyArgs(graph, node, forms)) : ValueId{};
}

}  // namespace lowtide
