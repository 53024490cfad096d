#include "passes/index_form.h"

#include <algorithm>

#include "passes/rewrite.h"

namespace lowtide {

namespace {

IndexForm constant_form(Dim offset, size_t rank) { return {std::move(offset), std::vector<Dim>(rank)}; }

// The stride along a dim of size 1 says nothing.
void drop_single(IndexForm& form, const Shape& shape) {
  for (size_t i = 0; i < shape.size(); ++i)
    if (shape[i].is(1)) form.strides[i] = 0;
}

// `form` of a tensor of shape `from`, broadcast to rank `rank`.
IndexForm broadcast(const IndexForm& form, size_t rank) {
  IndexForm result = constant_form(form.offset, rank);
  std::copy_backward(form.strides.begin(), form.strides.end(), result.strides.end());
  return result;
}

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

// The form of a view of a tensor with `form`; nullopt for a Reshape that mixes dims.
std::optional<IndexForm> of_view(const Node& node, const IndexForm& form, const Shape& from, const Shape& to) {
  switch (node.op) {
    case Op::kIdentity:
    case Op::kDetach: return form;
    case Op::kExpand: return broadcast(form, to.size());
    case Op::kTranspose: {
      IndexForm result = form;
      const std::vector<int64_t> perm = node.attrs.is("perm");
      for (size_t i = 0; i < perm.size(); ++i) result.strides[i] = form.strides[static_cast<size_t>(perm[i])];
      return result;
    }
    case Op::kSlice: {
      IndexForm result = form;
      Dim& stride = result.strides[static_cast<size_t>(node.attrs.i("axis"))];
      result.offset = result.offset + node.attrs.dim("start") * stride;
      stride = stride * node.attrs.dim("step");
      return result;
    }
    case Op::kUnsqueeze:
    case Op::kSqueeze:
    case Op::kReshape: {
      if (form.is_constant()) return constant_form(form.offset, to.size());
      // Only dims of size 1 may come and go.
      IndexForm result = constant_form(form.offset, to.size());
      size_t at = 0;
      for (size_t i = 0; i < to.size(); ++i) {
        if (to[i].is(1)) continue;
        while (at < from.size() && from[at].is(1)) ++at;
        if (at == from.size() || from[at] != to[i]) return std::nullopt;
        result.strides[i] = form.strides[at++];
      }
      return result;
    }
    default: return std::nullopt;
  }
}

bool is_known_index_dtype(DType from, DType to) { return to == DType::kI64 && is_integer(from); }

}  // namespace

bool IndexForm::is_constant() const {
  return std::all_of(strides.begin(), strides.end(), [](const Dim& stride) { return stride.is(0); });
}

const IndexForm* IndexForms::form(ValueId value) {
  auto at = forms_.find(value);
  if (at == forms_.end()) {
    std::optional<IndexForm> found = find_form(value);
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

// Pieces that continue each other: [-1] and [0, 1, 2] along the axis.
std::optional<IndexForm> IndexForms::concat(const Node& node) {
  const auto axis = static_cast<size_t>(node.attrs.i("axis"));
  std::vector<IndexForm> pieces;
  std::optional<Dim> stride;
  for (ValueId input : node.inputs) {
    const IndexForm* piece = form(input);
    if (!piece) return std::nullopt;
    pieces.push_back(*piece);
    if (!graph_.type(input).shape[axis].is(1)) stride = piece->strides[axis];
  }
  if (!stride) stride = pieces.size() > 1 ? pieces[1].offset - pieces[0].offset : Dim(0);
  Dim offset = pieces[0].offset;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Dim& size = graph_.type(node.inputs[i]).shape[axis];
    if (size.is(1)) pieces[i].strides[axis] = *stride;
    if (pieces[i].strides != pieces[0].strides || pieces[i].offset != offset) return std::nullopt;
    offset = offset + size * *stride;
  }
  return pieces[0];
}

std::optional<IndexForm> IndexForms::find_form(ValueId value) {
  const TensorType& type = graph_.type(value);
  const NodeId id = graph_.value(value).producer;
  if (!id || !is_integer(type.dtype)) return std::nullopt;
  const Node& node = graph_.node(id);
  const size_t rank = type.shape.size();
  const auto operand = [&](size_t index) { return form(node.inputs[index]); };
  switch (node.op) {
    case Op::kConstant:
    case Op::kConstantOfShape:
      if (!node.attrs.has("int_value")) return std::nullopt;
      return constant_form(node.attrs.dim("int_value"), rank);
    case Op::kRange:
      if (!node.attrs.has("int_start") || !node.attrs.has("int_step")) return std::nullopt;
      return IndexForm{node.attrs.dim("int_start"), {node.attrs.dim("int_step")}};
    case Op::kCopy: return operand(0) ? std::optional(*operand(0)) : std::nullopt;
    case Op::kCast: {
      const DType from = graph_.type(node.inputs[0]).dtype;
      if (from == DType::kBool) {
        const Truth* truth = this->truth(node.inputs[0]);
        if (!truth || truth->kind == Truth::kWhereNotPositive) return std::nullopt;
        return constant_form(truth->kind == Truth::kTrue, rank);
      }
      if (!is_known_index_dtype(from, type.dtype) || !operand(0)) return std::nullopt;
      return *operand(0);
    }
    case Op::kAdd:
    case Op::kSub:
      if (!operand(0) || !operand(1)) return std::nullopt;
      return combine(*form(node.inputs[0]), *form(node.inputs[1]), node.op == Op::kAdd ? 1 : -1, rank);
    case Op::kNeg: return operand(0) ? std::optional(scale(*operand(0), -1)) : std::nullopt;
    case Op::kMul: {
      const IndexForm *a = operand(0), *b = operand(1);
      a = operand(0);
      if (!a || !b) return std::nullopt;
      if (b->is_constant()) return broadcast(scale(*a, b->offset), rank);
      if (a->is_constant()) return broadcast(scale(*b, a->offset), rank);
      return std::nullopt;
    }
    case Op::kConcat: return concat(node);
    case Op::kCumSum: {
      const IndexForm* x = operand(0);
      if (!x || !x->is_constant() || (node.attrs.b("reverse", false) && !x->offset.is(0))) return std::nullopt;
      IndexForm result = *x;
      result.strides[static_cast<size_t>(node.attrs.i("axis"))] = x->offset;
      return result;
    }
    case Op::kGather:
    case Op::kGatherND:
    case Op::kGatherElements:
      // Wherever the indices point, the number is the same.
      if (!operand(0) || !operand(0)->is_constant()) return std::nullopt;
      return constant_form(operand(0)->offset, rank);
    case Op::kWhere:
      for (const bool branch : {true, false})
        if (is_all(node.inputs[0], branch)) {
          const IndexForm* chosen = operand(branch ? 1 : 2);
          return chosen ? std::optional(broadcast(*chosen, rank)) : std::nullopt;
        }
      return std::nullopt;
    default:
      if (!is_view(node.op) || !operand(0)) return std::nullopt;
      return of_view(node, *operand(0), graph_.type(node.inputs[0]).shape, type.shape);
  }
}

// Decides `form <= 0` where the bounds of the form allow it.
Truth IndexForms::where_not_positive(IndexForm form, const Shape& shape) const {
  drop_single(form, shape);
  Dim low = form.offset, high = form.offset;
  bool bounded = true;
  for (size_t i = 0; i < shape.size(); ++i) {
    const DimRange stride = range_of(form.strides[i], graph_.ranges());
    const Dim last = form.strides[i] * (shape[i] - 1);
    if (stride.low >= 0) {
      high = high + last;
    } else if (stride.high <= 0) {
      low = low + last;
    } else {
      bounded = false;
    }
  }
  if (bounded && range_of(high, graph_.ranges()).high <= 0) return {Truth::kTrue, {}};
  if (bounded && range_of(low, graph_.ranges()).low > 0) return {Truth::kFalse, {}};
  return {Truth::kWhereNotPositive, std::move(form)};
}

std::optional<Truth> IndexForms::find_truth(ValueId value) {
  const TensorType& type = graph_.type(value);
  const NodeId id = graph_.value(value).producer;
  if (!id || type.dtype != DType::kBool) return std::nullopt;
  const Node& node = graph_.node(id);
  const size_t rank = type.shape.size();
  const auto is_constant_truth = [](const Truth* truth) { return truth && truth->kind != Truth::kWhereNotPositive; };
  const auto difference = [&](size_t a, size_t b, int64_t shift) -> std::optional<Truth> {
    if (!form(node.inputs[a]) || !form(node.inputs[b])) return std::nullopt;
    IndexForm result = combine(*form(node.inputs[a]), *form(node.inputs[b]), -1, rank);
    result.offset = result.offset + shift;
    return where_not_positive(std::move(result), type.shape);
  };
  const auto negated = [&](const Truth& truth) -> Truth {
    if (truth.kind != Truth::kWhereNotPositive) return {truth.kind == Truth::kTrue ? Truth::kFalse : Truth::kTrue, {}};
    IndexForm form = scale(truth.form, -1);
    form.offset = form.offset + 1;
    return {Truth::kWhereNotPositive, std::move(form)};
  };
  switch (node.op) {
    case Op::kConstant:
    case Op::kConstantOfShape: {
      const Dim* number = node.attrs.has("int_value") ? &node.attrs.dim("int_value") : nullptr;
      if (!number || !number->is_constant()) return std::nullopt;
      return Truth{number->is(0) ? Truth::kFalse : Truth::kTrue, {}};
    }
    case Op::kCopy: return truth(node.inputs[0]) ? std::optional(*truth(node.inputs[0])) : std::nullopt;
    case Op::kCast: {
      if (graph_.type(node.inputs[0]).dtype == DType::kBool)
        return truth(node.inputs[0]) ? std::optional(*truth(node.inputs[0])) : std::nullopt;
      if (const std::optional<double> number = uniform_float(graph_, node.inputs[0]))
        return Truth{*number == 0 ? Truth::kFalse : Truth::kTrue, {}};
      const IndexForm* x = form(node.inputs[0]);
      if (!x || !x->is_constant() || !x->offset.is_constant()) return std::nullopt;
      return Truth{x->offset.is(0) ? Truth::kFalse : Truth::kTrue, {}};
    }
    case Op::kLessOrEqual: return difference(0, 1, 0);
    case Op::kLess: return difference(0, 1, 1);
    case Op::kGreaterOrEqual: return difference(1, 0, 0);
    case Op::kGreater: return difference(1, 0, 1);
    case Op::kEqual:
    case Op::kNotEqual: {
      const std::optional<Truth> at_most = difference(0, 1, 0), at_least = difference(1, 0, 0);
      if (!is_constant_truth(at_most ? &*at_most : nullptr) || !is_constant_truth(at_least ? &*at_least : nullptr))
        return std::nullopt;
      const bool equal = at_most->kind == Truth::kTrue && at_least->kind == Truth::kTrue;
      return Truth{equal == (node.op == Op::kEqual) ? Truth::kTrue : Truth::kFalse, {}};
    }
    case Op::kNot: return truth(node.inputs[0]) ? std::optional(negated(*truth(node.inputs[0]))) : std::nullopt;
    case Op::kAnd:
    case Op::kOr: {
      // `absorbing` decides alone; the other constant changes nothing.
      const bool absorbing = node.op == Op::kOr;
      for (ValueId input : node.inputs)
        if (is_all(input, absorbing)) return Truth{absorbing ? Truth::kTrue : Truth::kFalse, {}};
      for (size_t i = 0; i < 2; ++i) {
        if (!is_all(node.inputs[i], !absorbing)) continue;
        const Truth* other = truth(node.inputs[1 - i]);
        if (!other) return std::nullopt;
        Truth result = *other;
        if (result.kind == Truth::kWhereNotPositive) result.form = broadcast(result.form, rank);
        return result;
      }
      return std::nullopt;
    }
    case Op::kGather:
    case Op::kGatherND:
    case Op::kGatherElements:
      return is_constant_truth(truth(node.inputs[0])) ? std::optional(*truth(node.inputs[0])) : std::nullopt;
    default: {
      if (!is_view(node.op)) return std::nullopt;
      const Truth* x = truth(node.inputs[0]);
      if (!x || is_constant_truth(x)) return x ? std::optional(*x) : std::nullopt;
      std::optional<IndexForm> form = of_view(node, x->form, graph_.type(node.inputs[0]).shape, type.shape);
      if (!form) return std::nullopt;
      return where_not_positive(std::move(*form), type.shape);
    }
  }
}

}  // namespace lowtide
