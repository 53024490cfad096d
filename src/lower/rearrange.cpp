// Joining, repeating, padding and turning tensors; slices written into a base.
#include <algorithm>

#include "lower/promotion.h"
#include "lower/targets.h"

namespace lowtide {

std::pair<Dim, Dim> slice_bounds(Call& c, const Dim& size, const Dim& length);

bool lower_cat(Call& c) {
  std::vector<ValueId> parts;
  for (ValueId tensor : c.tensors("tensors")) {
    // PyTorch ignores 1-d tensors without elements.
    const bool is_empty = c.b.rank(tensor) == 1 && c.b.shape(tensor)[0].is(0);
    if (!is_empty || c.shape().size() == 1) parts.push_back(c.b.cast(tensor, c.dtype()));
  }
  const int64_t rank = static_cast<int64_t>(c.shape().size());
  if (parts.empty()) return false;
  if (parts.size() == 1) return c.result(parts[0]);
  const int64_t axis = c.axis("dim", rank);
  const ValueId joined = c.b.op(Op::kConcat, parts, {{"axis", Dim(axis)}});
  // Sizes from data may add up to one of the inputs', which a step of the graph checks.
  const Dim& size = c.shape()[static_cast<size_t>(axis)];
  return c.result(c.b.shape(joined)[static_cast<size_t>(axis)] == size ? joined : c.b.slice(joined, axis, 0, size));
}

bool lower_stack(Call& c) {
  const int64_t axis = c.axis("dim", static_cast<int64_t>(c.shape().size()));
  std::vector<ValueId> parts;
  for (ValueId tensor : c.tensors("tensors")) parts.push_back(c.b.unsqueeze(c.b.cast(tensor, c.dtype()), {axis}));
  if (parts.size() == 1) return c.result(parts[0]);
  return c.result(c.b.op(Op::kConcat, parts, {{"axis", Dim(axis)}}));
}

// hstack, vstack, dstack, column_stack: tensors get as many dims as they are joined in.
bool lower_stack_along(Call& c) {
  const std::string& target = c.node().target;
  const bool columns = target == "aten::column_stack.default", deep = target == "aten::dstack.default";
  const bool flat = target == "aten::hstack.default" && c.shape().size() == 1;
  const int64_t axis = deep ? 2 : flat || target == "aten::vstack.default" ? 0 : 1;
  std::vector<ValueId> parts;
  for (ValueId tensor : c.tensors("tensors")) {
    Shape shape = c.b.shape(tensor);
    if (columns) {
      while (shape.size() < 2) shape.push_back(1);
    } else {
      if (shape.empty()) shape.push_back(1);
      if (shape.size() == 1 && c.shape().size() > 1) shape.insert(shape.begin(), 1);
      if (shape.size() == 2 && deep) shape.push_back(1);
    }
    parts.push_back(c.b.cast(c.b.reshape(tensor, shape), c.dtype()));
  }
  return c.result(parts.size() == 1 ? parts[0] : c.b.op(Op::kConcat, parts, {{"axis", Dim(axis)}}));
}

bool lower_repeat(Call& c) {
  ValueId x = c.tensor("self");
  std::vector<Dim> repeats = c.has("repeats") ? c.dims("repeats") : c.dims("dims");
  Shape shape = c.b.shape(x);
  if (repeats.size() < shape.size()) repeats.insert(repeats.begin(), shape.size() - repeats.size(), Dim(1));
  shape.insert(shape.begin(), repeats.size() - shape.size(), Dim(1));
  x = c.b.reshape(x, shape);
  const bool once = std::all_of(repeats.begin(), repeats.end(), [](const Dim& n) { return n.is(1); });
  return c.result(once ? x : c.b.op(Op::kTile, {x}, {{"repeats", repeats}}));
}

bool lower_repeat_interleave(Call& c) {
  ValueId x = c.tensor("self");
  int64_t axis = 0;
  if (c.has("dim") && c.b.rank(x) > 0)
    axis = c.axis("dim", c.b.rank(x));
  else
    x = c.b.reshape(x, {numel(c.b.shape(x))});
  return c.result(c.b.op(Op::kRepeatInterleave, {x}, {{"axis", Dim(axis)}, {"repeats", c.dim("repeats")}}));
}

// The row's op is ArgMax where the second dim is turned, ArgMin where the first is.
bool lower_flip(Call& c) {
  const ValueId x = c.tensor("self");
  if (c.op() != Op::kIdentity)
    return c.result(c.b.op(Op::kFlip, {x}, {{"axes", std::vector<Dim>{c.op() == Op::kArgMax ? 1 : 0}}}));
  if (c.dims("dims").empty() || c.b.rank(x) == 0) return c.result(x);
  std::vector<Dim> axes;
  for (int64_t axis : c.axes("dims", c.b.rank(x))) axes.push_back(axis);
  return c.result(c.b.op(Op::kFlip, {x}, {{"axes", axes}}));
}

// A quarter turn from the first to the second axis is a transpose, then a flip of the first.
bool lower_rot90(Call& c) {
  const ValueId x = c.tensor("self");
  const int64_t turns = (c.integer("k", 1) % 4 + 4) % 4, rank = c.b.rank(x);
  std::vector<int64_t> axes;
  for (const Dim& dim : c.dims("dims")) axes.push_back(dim.constant() < 0 ? dim.constant() + rank : dim.constant());
  const auto flip = [&](ValueId value, std::vector<Dim> flipped) {
    return c.b.op(Op::kFlip, {value}, {{"axes", std::move(flipped)}});
  };
  if (turns == 0) return c.result(x);
  if (turns == 2) return c.result(flip(x, {Dim(std::min(axes[0], axes[1])), Dim(std::max(axes[0], axes[1]))}));
  return c.result(flip(c.b.swap_axes(x, axes[0], axes[1]), {Dim(turns == 1 ? axes[0] : axes[1])}));
}

bool lower_roll(Call& c) {
  const ValueId x = c.tensor("self");
  const std::vector<Dim> shifts = c.dims("shifts");
  if (c.b.rank(x) == 0) return c.result(x);
  if (c.dims("dims").empty()) {
    const ValueId flat = c.b.reshape(x, {numel(c.b.shape(x))});
    return c.result(
        c.b.reshape(c.b.op(Op::kRoll, {flat}, {{"axes", std::vector<Dim>{0}}, {"shifts", shifts}}), c.shape()));
  }
  std::vector<Dim> axes;
  for (const Dim& dim : c.dims("dims")) axes.push_back(dim.constant() < 0 ? dim + c.b.rank(x) : dim);
  return c.result(c.b.op(Op::kRoll, {x}, {{"axes", axes}, {"shifts", shifts}}));
}

// triu and tril; the row's op is ReduceMax for the upper triangle, ReduceMin for the lower.
bool lower_triangle(Call& c) {
  const Dim k = c.has("diagonal") ? c.dim("diagonal") : Dim(0);
  return c.result(c.b.op(Op::kTrilu, {c.tensor("self")}, {{"upper", c.op() == Op::kReduceMax}, {"k", k}}));
}

static bool is_negative(const Dim& pad) { return pad.is_constant() && pad.constant() < 0; }

static bool pad(Call& c, const std::vector<Dim>& from_last, const std::string& mode, double value) {
  ValueId x = c.operand("self", c.dtype());
  const size_t rank = static_cast<size_t>(c.b.rank(x));
  std::vector<Dim> pads(2 * rank, Dim(0));
  for (size_t i = 0; 2 * i + 1 < from_last.size(); ++i) {
    const size_t axis = rank - 1 - i;
    Dim before = from_last[2 * i], after = from_last[2 * i + 1];
    // Going round, PyTorch first takes away what negative padding does.
    if (mode == "wrap" && (is_negative(before) || is_negative(after))) {
      const Dim start = is_negative(before) ? Dim(0) - before : Dim(0), size = c.b.shape(x)[axis];
      x = c.b.slice(x, static_cast<int64_t>(axis), start, is_negative(after) ? size + after : size);
      if (is_negative(before)) before = 0;
      if (is_negative(after)) after = 0;
    }
    pads[axis] = before;
    pads[rank + axis] = after;
  }
  if (std::all_of(pads.begin(), pads.end(), [](const Dim& p) { return p.is(0); })) return c.result(x);
  return c.result(c.b.op(Op::kPad, {x}, {{"pads", pads}, {"mode", mode}, {"value", value}}));
}

bool lower_pad(Call& c) {
  std::string mode = c.text("mode", "constant");
  if (mode == "replicate") mode = "edge";
  if (mode == "circular") mode = "wrap";
  return pad(c, c.dims("pad"), mode, c.real("value", 0));
}
bool lower_constant_pad(Call& c) { return pad(c, c.dims("pad"), "constant", c.real("value", 0)); }
bool lower_reflection_pad(Call& c) { return pad(c, c.dims("padding"), "reflect", 0); }
bool lower_replication_pad(Call& c) { return pad(c, c.dims("padding"), "edge", 0); }

// ---- the inverse views of functionalise: a copy of self with a slice replaced

bool lower_slice_scatter(Call& c) {
  const ValueId x = c.operand("self", c.dtype());
  ValueId src = c.operand("src", c.dtype());
  const int64_t axis = c.axis("dim", c.b.rank(x));
  const size_t at = static_cast<size_t>(axis);
  const Dim size = c.b.shape(x)[at], step = c.has("step") ? c.dim("step") : Dim(1);
  const auto [start, end] = slice_bounds(c, size, c.b.shape(src)[at]);
  if (start.is(0) && end == size && step.is(1)) return c.result(src);
  return c.result(
      c.b.op(Op::kSliceScatter, {x, src}, {{"axis", Dim(axis)}, {"start", start}, {"end", end}, {"step", step}}));
}

bool lower_select_scatter(Call& c) {
  const ValueId x = c.operand("self", c.dtype());
  const int64_t axis = c.axis("dim", c.b.rank(x));
  Dim index = c.dim("index");
  if (range_of(index, c.ranges()).high < 0) index = index + c.b.shape(x)[static_cast<size_t>(axis)];
  const ValueId src = c.b.unsqueeze(c.operand("src", c.dtype()), {axis});
  return c.result(c.b.op(Op::kSliceScatter, {x, src},
                         {{"axis", Dim(axis)}, {"start", index}, {"end", index + 1}, {"step", Dim(1)}}));
}

// ---- pixels

bool lower_pixel_shuffle(Call& c) {
  Builder& b = c.b;
  const ValueId x = c.tensor("self");
  const Dim r = c.dim("upscale_factor");
  const Shape& shape = b.shape(x);
  const size_t rank = shape.size();
  Shape split(shape.begin(), shape.end() - 3);
  const int64_t outer = static_cast<int64_t>(split.size());
  split.insert(split.end(), {c.shape()[rank - 3], r, r, shape[rank - 2], shape[rank - 1]});
  std::vector<int64_t> perm;
  for (int64_t i = 0; i < outer; ++i) perm.push_back(i);
  for (int64_t i : {0, 3, 1, 4, 2}) perm.push_back(outer + i);
  return c.result(b.reshape(b.transpose(b.reshape(x, split), perm), c.shape()));
}

bool lower_pixel_unshuffle(Call& c) {
  Builder& b = c.b;
  const ValueId x = c.tensor("self");
  const Dim r = c.dim("downscale_factor");
  const Shape& shape = b.shape(x);
  const size_t rank = shape.size();
  Shape split(shape.begin(), shape.end() - 2);
  const int64_t outer = static_cast<int64_t>(split.size());
  split.insert(split.end(), {c.shape()[rank - 2], r, c.shape()[rank - 1], r});
  std::vector<int64_t> perm;
  for (int64_t i = 0; i < outer; ++i) perm.push_back(i);
  for (int64_t i : {1, 3, 0, 2}) perm.push_back(outer + i);
  return c.result(b.reshape(b.transpose(b.reshape(x, split), perm), c.shape()));
}

// Channels of all groups in turn.
bool lower_channel_shuffle(Call& c) {
  const ValueId x = c.tensor("self");
  const Dim groups = c.dim("groups");
  Shape split = c.b.shape(x);
  const Dim each = floordiv(split[1], groups);
  split[1] = each;
  split.insert(split.begin() + 1, groups);
  return c.result(c.b.reshape(c.b.swap_axes(c.b.reshape(x, split), 1, 2), c.shape()));
}

// ---- differences

bool lower_diff(Call& c) {
  Builder& b = c.b;
  if (c.integer("n", 1) == 0) return c.result(c.tensor("self"));
  const int64_t axis = c.axis("dim", static_cast<int64_t>(c.shape().size()), -1);
  std::vector<ValueId> parts;
  for (std::string_view name : {"prepend", "self", "append"})
    if (c.is_tensor(name)) parts.push_back(c.operand(name, c.dtype()));
  ValueId x = parts.size() == 1 ? parts[0] : b.op(Op::kConcat, parts, {{"axis", Dim(axis)}});
  for (int64_t i = 0; i < c.integer("n", 1); ++i) {
    const Dim size = b.shape(x)[static_cast<size_t>(axis)];
    if (size.is(0)) break;  // nothing has no differences, however often
    const ValueId later = b.slice(x, axis, 1, size), earlier = b.slice(x, axis, 0, size - 1);
    x = b.op(c.dtype() == DType::kBool ? Op::kNotEqual : Op::kSub, {later, earlier});
  }
  return c.result(x);
}

}  // namespace lowtide
