#include "ops/index_form.h"

#include <algorithm>

#include "ops/uniform.h"

namespace lowtide {

namespace {

IndexForm constant_form(Dim offset, size_t rank) { return {{std::move(offset), Shape(rank, Dim(0))}}; }

// The stride along a dim of size 1 says nothing.
void drop_single(IndexForm& form, const Shape& shape) {
  for (size_t i = 0; i < shape.size(); ++i)
    if (shape[i].is(1)) form.strides[i] = 0;
}

// `form` broadcast to rank `rank`.
IndexForm broadcast(const IndexForm& form, size_t rank) {
  IndexForm result = constant_form(form.offset, rank);
  std::copy_backward(form.strides.begin(), form.strides.end(), result.strides.end());
  return result;
}

// a + factor*b
IndexForm combine(const IndexForm& a, const IndexForm& b, const Dim& factor, size_t rank) {
  IndexForm sum = broadcast(a, rank);
  const IndexForm right = broadcast(b, rank);
  sum.offset = sum.offset + factor * right.offset;
  for (size_t i = 0; i < rank; ++i) sum.strides[i] = sum.strides[i] + factor * right.strides[i];
  return sum;
}

IndexForm scale(const IndexForm& form, const Dim& factor) {
  IndexForm result = constant_form(form.offset * factor, form.strides.size());
  for (size_t i = 0; i < form.strides.size(); ++i) result.strides[i] = form.strides[i] * factor;
  return result;
}

Truth everywhere(bool value) { return {value ? Truth::kTrue : Truth::kFalse, {}}; }

// Decides `form <= 0` where the bounds of the form allow it.
Truth where_not_positive(IndexForm form, const Shape& shape, const DimRanges& ranges) {
  drop_single(form, shape);
  Dim low = form.offset, high = form.offset;
  bool bounded = true;
  for (size_t i = 0; i < shape.size(); ++i) {
    const DimRange stride = range_of(form.strides[i], ranges);
    const Dim last = form.strides[i] * (shape[i] - 1);
    if (stride.low >= 0) {
      high = high + last;
    } else if (stride.high <= 0) {
      low = low + last;
    } else {
      bounded = false;
    }
  }
  if (bounded && range_of(high, ranges).high <= 0) return everywhere(true);
  if (bounded && range_of(low, ranges).low > 0) return everywhere(false);
  return {Truth::kWhereNotPositive, std::move(form)};
}

using Form = std::optional<IndexForm>;
using MaybeTruth = std::optional<Truth>;

// What a rule sees: a node with one output, of integers for a rule of forms and of bools for one of truths.
class IndexArgs {
 public:
  IndexArgs(const Graph& graph, IndexForms& forms, const Node& node) : graph_(graph), forms_(forms), node_(node) {}

  const Attrs& attrs() const { return node_.attrs; }
  size_t operands() const { return node_.inputs.size(); }
  const TensorType& in(size_t operand) const { return graph_.type(node_.inputs[operand]); }
  const TensorType& out() const { return graph_.type(node_.outputs[0]); }
  size_t rank() const { return out().shape.size(); }
  const DimRanges& ranges() const { return graph_.ranges(); }

  const IndexForm* form(size_t operand) const { return forms_.form(node_.inputs[operand]); }
  const Truth* truth(size_t operand) const { return forms_.truth(node_.inputs[operand]); }
  bool is_all(size_t operand, bool expected) const { return forms_.is_all(node_.inputs[operand], expected); }
  std::optional<double> uniform_float(size_t operand) const {
    return lowtide::uniform_float(graph_, node_.inputs[operand]);
  }

 private:
  const Graph& graph_;
  IndexForms& forms_;
  const Node& node_;
};

// ---- the rules of integers that ops.def names

Form index_filler(const IndexArgs& a) {
  if (!a.attrs().has("int_value")) return std::nullopt;
  return constant_form(a.attrs().dim("int_value"), a.rank());
}

Form index_range(const IndexArgs& a) {
  if (!a.attrs().has("int_start") || !a.attrs().has("int_step")) return std::nullopt;
  return IndexForm{{a.attrs().dim("int_start"), {a.attrs().dim("int_step")}}};
}

Form index_same(const IndexArgs& a) { return a.form(0) ? Form(*a.form(0)) : std::nullopt; }

Form index_cast(const IndexArgs& a) {
  const DType from = a.in(0).dtype;
  if (from == DType::kBool) {
    const Truth* truth = a.truth(0);
    if (!truth || !truth->is_constant()) return std::nullopt;
    return constant_form(truth->kind == Truth::kTrue, a.rank());
  }
  // What i64 does not hold wraps around elsewhere.
  return a.out().dtype == DType::kI64 && is_integer(from) ? index_same(a) : std::nullopt;
}

Form sum_of_forms(const IndexArgs& a, const Dim& factor) {
  const IndexForm *x = a.form(0), *y = a.form(1);
  if (!x || !y) return std::nullopt;
  return combine(*x, *y, factor, a.rank());
}

Form index_add(const IndexArgs& a) { return sum_of_forms(a, 1); }
Form index_sub(const IndexArgs& a) { return sum_of_forms(a, -1); }
Form index_neg(const IndexArgs& a) { return a.form(0) ? Form(scale(*a.form(0), -1)) : std::nullopt; }

Form index_mul(const IndexArgs& a) {
  const IndexForm *x = a.form(0), *y = a.form(1);
  if (!x || !y) return std::nullopt;
  if (y->is_constant()) return broadcast(scale(*x, y->offset), a.rank());
  if (x->is_constant()) return broadcast(scale(*y, x->offset), a.rank());
  return std::nullopt;
}

// Pieces that continue each other: [-1] and [0, 1, 2] along the axis.
Form index_concat(const IndexArgs& a) {
  const auto axis = static_cast<size_t>(a.attrs().i("axis"));
  std::vector<IndexForm> pieces;
  std::optional<Dim> stride;
  for (size_t i = 0; i < a.operands(); ++i) {
    const IndexForm* piece = a.form(i);
    if (!piece) return std::nullopt;
    pieces.push_back(*piece);
    if (!a.in(i).shape[axis].is(1)) stride = piece->strides[axis];
  }
  if (!stride) stride = pieces.size() > 1 ? pieces[1].offset - pieces[0].offset : Dim(0);
  Dim offset = pieces[0].offset;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Dim& size = a.in(i).shape[axis];
    if (size.is(1)) pieces[i].strides[axis] = *stride;
    if (pieces[i].strides != pieces[0].strides || pieces[i].offset != offset) return std::nullopt;
    offset = offset + size * *stride;
  }
  return pieces[0];
}

Form index_cum_sum(const IndexArgs& a) {
  const IndexForm* x = a.form(0);
  if (!x || !x->is_constant() || (a.attrs().b("reverse", false) && !x->offset.is(0))) return std::nullopt;
  IndexForm result = *x;
  result.strides[static_cast<size_t>(a.attrs().i("axis"))] = x->offset;
  return result;
}

// Wherever the indices point, the number is the same.
Form index_gather(const IndexArgs& a) {
  if (!a.form(0) || !a.form(0)->is_constant()) return std::nullopt;
  return constant_form(a.form(0)->offset, a.rank());
}

Form index_where(const IndexArgs& a) {
  for (const bool branch : {true, false})
    if (a.is_all(0, branch)) {
      const IndexForm* chosen = a.form(branch ? 1 : 2);
      return chosen ? Form(broadcast(*chosen, a.rank())) : std::nullopt;
    }
  return std::nullopt;
}

// ---- the rules of bools

MaybeTruth truth_filler(const IndexArgs& a) {
  const Dim* number = a.attrs().has("int_value") ? &a.attrs().dim("int_value") : nullptr;
  if (!number || !number->is_constant()) return std::nullopt;
  return everywhere(!number->is(0));
}

MaybeTruth truth_same(const IndexArgs& a) { return a.truth(0) ? MaybeTruth(*a.truth(0)) : std::nullopt; }

MaybeTruth truth_cast(const IndexArgs& a) {
  if (a.in(0).dtype == DType::kBool) return truth_same(a);
  if (const std::optional<double> number = a.uniform_float(0)) return everywhere(*number != 0);
  const IndexForm* x = a.form(0);
  if (!x || !x->is_constant() || !x->offset.is_constant()) return std::nullopt;
  return everywhere(!x->offset.is(0));
}

// operand `x` - operand `y` + shift <= 0
MaybeTruth difference(const IndexArgs& a, size_t x, size_t y, int64_t shift) {
  if (!a.form(x) || !a.form(y)) return std::nullopt;
  IndexForm result = combine(*a.form(x), *a.form(y), -1, a.rank());
  result.offset = result.offset + shift;
  return where_not_positive(std::move(result), a.out().shape, a.ranges());
}

MaybeTruth truth_less_or_equal(const IndexArgs& a) { return difference(a, 0, 1, 0); }
MaybeTruth truth_less(const IndexArgs& a) { return difference(a, 0, 1, 1); }
MaybeTruth truth_greater_or_equal(const IndexArgs& a) { return difference(a, 1, 0, 0); }
MaybeTruth truth_greater(const IndexArgs& a) { return difference(a, 1, 0, 1); }

MaybeTruth negated(const Truth& truth) {
  if (truth.is_constant()) return everywhere(truth.kind == Truth::kFalse);
  IndexForm form = scale(truth.form, -1);
  form.offset = form.offset + 1;
  return Truth{Truth::kWhereNotPositive, std::move(form)};
}

MaybeTruth truth_not(const IndexArgs& a) { return a.truth(0) ? negated(*a.truth(0)) : std::nullopt; }

MaybeTruth truth_equal(const IndexArgs& a) {
  const MaybeTruth at_most = difference(a, 0, 1, 0), at_least = difference(a, 1, 0, 0);
  if (!at_most || !at_least || !at_most->is_constant() || !at_least->is_constant()) return std::nullopt;
  return everywhere(at_most->kind == Truth::kTrue && at_least->kind == Truth::kTrue);
}

MaybeTruth truth_not_equal(const IndexArgs& a) {
  const MaybeTruth equal = truth_equal(a);
  return equal ? negated(*equal) : std::nullopt;
}

// `absorbing` decides alone; the other constant changes nothing.
MaybeTruth junction(const IndexArgs& a, bool absorbing) {
  for (size_t i = 0; i < 2; ++i)
    if (a.is_all(i, absorbing)) return everywhere(absorbing);
  for (size_t i = 0; i < 2; ++i) {
    if (!a.is_all(i, !absorbing)) continue;
    const Truth* other = a.truth(1 - i);
    if (!other) return std::nullopt;
    Truth result = *other;
    if (!result.is_constant()) result.form = broadcast(result.form, a.rank());
    return result;
  }
  return std::nullopt;
}

MaybeTruth truth_and(const IndexArgs& a) { return junction(a, false); }
MaybeTruth truth_or(const IndexArgs& a) { return junction(a, true); }

MaybeTruth truth_gather(const IndexArgs& a) {
  return a.truth(0) && a.truth(0)->is_constant() ? MaybeTruth(*a.truth(0)) : std::nullopt;
}

using FormFunction = Form (*)(const IndexArgs&);
using TruthFunction = MaybeTruth (*)(const IndexArgs&);

FormFunction form_function(Op op) {
  switch (op) {
#define LT_OP(...)
#define LT_INDEX(name, rule) \
  case Op::k##name: return rule;
#include "opset/ops.def"
    default: return nullptr;
  }
}

TruthFunction truth_function(Op op) {
  switch (op) {
#define LT_OP(...)
#define LT_TRUTH(name, rule) \
  case Op::k##name: return rule;
#include "opset/ops.def"
    default: return nullptr;
  }
}

// The form of a view of a tensor with `form`; nullopt for a Reshape that mixes dims.
Form of_view(const Graph& graph, const Node& view, const IndexForm& form) {
  if (form.is_constant()) return constant_form(form.offset, graph.type(view.outputs[0]).shape.size());
  std::optional<Strided> shown = view_of(graph, view, form);
  return shown ? Form(IndexForm{std::move(*shown)}) : std::nullopt;
}

}  // namespace

bool IndexForm::is_constant() const {
  return std::all_of(strides.begin(), strides.end(), [](const Dim& stride) { return stride.is(0); });
}

const IndexForm* IndexForms::form(ValueId value) {
  auto at = forms_.find(value);
  if (at == forms_.end()) {
    Form found = find_form(value);
    if (found) drop_single(*found, graph_.type(value).shape);
    at = forms_.insert_or_assign(value, std::move(found)).first;
  }
  return at->second ? &*at->second : nullptr;
}

const Truth* IndexForms::truth(ValueId value) {
  auto at = truths_.find(value);
  if (at == truths_.end()) at = truths_.insert_or_assign(value, find_truth(value)).first;
  return at->second ? &*at->second : nullptr;
}

bool IndexForms::is_all(ValueId value, bool expected) {
  const Truth* found = truth(value);
  return found && found->kind == (expected ? Truth::kTrue : Truth::kFalse);
}

Form IndexForms::find_form(ValueId value) {
  const NodeId id = graph_.value(value).producer;
  if (!id || !is_integer(graph_.type(value).dtype)) return std::nullopt;
  const Node& node = graph_.node(id);
  if (is_view(node.op)) {
    const IndexForm* x = form(node.inputs[0]);
    return x ? of_view(graph_, node, *x) : std::nullopt;
  }
  const FormFunction rule = form_function(node.op);
  return rule ? rule(IndexArgs(graph_, *this, node)) : std::nullopt;
}

MaybeTruth IndexForms::find_truth(ValueId value) {
  const TensorType& type = graph_.type(value);
  const NodeId id = graph_.value(value).producer;
  if (!id || type.dtype != DType::kBool) return std::nullopt;
  const Node& node = graph_.node(id);
  if (is_view(node.op)) {
    const Truth* x = truth(node.inputs[0]);
    if (!x || x->is_constant()) return x ? MaybeTruth(*x) : std::nullopt;
    Form form = of_view(graph_, node, x->form);
    if (!form) return std::nullopt;
    return where_not_positive(std::move(*form), type.shape, graph_.ranges());
  }
  const TruthFunction rule = truth_function(node.op);
  return rule ? rule(IndexArgs(graph_, *this, node)) : std::nullopt;
}

}  // namespace lowtide
