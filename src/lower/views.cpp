// Views: they stay nodes and move no bytes.
#include "ir/views.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "lower/targets.h"

namespace lowtide {

bool lower_same(Call& c) { return c.result(c.tensor("self")); }

// The caller may change an argument, a buffer or a parameter before backward reads it: a copy is there to keep what it
// was. What memory_format asks for is another layout.
bool lower_clone(Call& c) {
  const ValueId x = c.tensor("self");
  const Value& base = c.b.graph().value(base_of_views(c.b.graph(), x));
  if (base.producer || !is_float(c.b.dtype(x)) || c.has("memory_format")) return c.result(x);
  const InputKind kind = c.b.graph().inputs()[static_cast<size_t>(base.output_index)].kind;
  if (kind == InputKind::kConstant) return c.result(x);
  return c.result(c.b.op(Op::kCopy, {x}, {{"keeps", true}}));
}

bool lower_detach(Call& c) { return c.result(c.b.op(Op::kDetach, {c.tensor("self")})); }

// view, reshape, flatten …: the exporter has worked out the shape.
bool lower_reshape(Call& c) { return c.result(c.b.reshape(c.tensor("self"), c.shape())); }

bool lower_expand(Call& c) { return c.result(c.b.expand(c.tensor("self"), c.shape())); }

// copy(self, src): src in self's shape.
bool lower_copy(Call& c) { return c.result(c.b.expand(c.b.cast(c.tensor("src"), c.dtype()), c.shape())); }

// lowtide::overwrite(Tensor value, Tensor x, bool passes) -> Tensor: of functionalise.
bool lower_overwrite(Call& c) {
  return c.result(c.b.op(Op::kOverwrite, {c.tensor("value"), c.tensor("x")}, {{"passes", c.flag("passes")}}));
}

bool lower_transpose(Call& c) {
  const ValueId x = c.tensor("self");
  const int64_t rank = c.b.rank(x);
  if (rank < 2) return c.result(x);
  const bool axes = c.has("axis0");
  return c.result(c.b.swap_axes(x, c.axis(axes ? "axis0" : "dim0", rank), c.axis(axes ? "axis1" : "dim1", rank)));
}

bool lower_matrix_transpose(Call& c) {
  const ValueId x = c.tensor("self");
  const int64_t rank = c.b.rank(x);
  return c.result(rank < 2 ? x : c.b.swap_axes(x, rank - 2, rank - 1));
}

bool lower_reverse_dims(Call& c) {
  const ValueId x = c.tensor("self");
  std::vector<int64_t> perm(static_cast<size_t>(c.b.rank(x)));
  std::iota(perm.rbegin(), perm.rend(), 0);
  return c.result(c.b.transpose(x, perm));
}

bool lower_permute(Call& c) {
  const ValueId x = c.tensor("self");
  std::vector<int64_t> perm;
  for (const Dim& dim : c.dims("dims"))
    perm.push_back(dim.constant() < 0 ? dim.constant() + c.b.rank(x) : dim.constant());
  return c.result(c.b.transpose(x, perm));
}

bool lower_movedim(Call& c) {
  const ValueId x = c.tensor("self");
  const int64_t rank = c.b.rank(x);
  std::vector<int64_t> perm(static_cast<size_t>(rank), -1);
  std::vector<bool> moved(static_cast<size_t>(rank));
  const std::vector<Dim> source = c.dims("source"), destination = c.dims("destination");
  for (size_t i = 0; i < source.size(); ++i) {
    const int64_t from = (source[i].constant() + rank) % rank, to = (destination[i].constant() + rank) % rank;
    perm[static_cast<size_t>(to)] = from;
    moved[static_cast<size_t>(from)] = true;
  }
  int64_t next = 0;
  for (int64_t& slot : perm) {
    if (slot >= 0) continue;
    while (moved[static_cast<size_t>(next)]) ++next;
    slot = next++;
  }
  return c.result(c.b.transpose(x, perm));
}

bool lower_unsqueeze(Call& c) {
  const ValueId x = c.tensor("self");
  return c.result(c.b.unsqueeze(x, {c.axis("dim", c.b.rank(x) + 1)}));
}

// squeeze of any dims: those that are 1 and asked for.
bool lower_squeeze(Call& c) {
  const ValueId x = c.tensor("self");
  std::vector<int64_t> axes;
  if (c.has("dim") && c.dims("dim").empty()) return c.result(x);
  // squeeze(dim=()) names no dim, squeeze() all.
  const bool none = c.node().attrs.has("dim") && c.dims("dim").empty();
  if (c.b.rank(x) > 0 && !none)
    for (int64_t axis : c.axes("dim", c.b.rank(x)))
      if (c.b.shape(x)[static_cast<size_t>(axis)].is(1)) axes.push_back(axis);
  return c.result(axes.empty() ? x : c.b.squeeze(x, axes));
}

// A position as Python counts it: negative ones from the end.
static Dim from_start(Call& c, const Dim& position, const Dim& size) {
  if (c.is_from_data(position)) return position + min(max(-position, Dim(0)), Dim(1)) * size;
  return range_of(position, c.ranges()).high < 0 ? size + position : position;
}

// The start and end of a slice of known length, from its arguments; bounds beyond the ends are moved there.
std::pair<Dim, Dim> slice_bounds(Call& c, const Dim& size, const Dim& length) {
  if (length.is(0)) return {0, 0};
  const Dim step = c.has("step") ? c.dim("step") : Dim(1);
  const bool to_the_end = !c.has("end") || (c.dim("end").is_constant() && c.dim("end").constant() > (int64_t{1} << 60));
  // The length holds what clamping did to the start: size - max(0, size - s).
  if (step.is(1) && to_the_end) return {size - length, size};
  auto between = [&](const Dim& low, const Dim& position) {
    return simplify(min(max(position, low), size), c.ranges());
  };
  Dim start = c.has("start") ? from_start(c, c.dim("start"), size) : Dim(0);
  if (step.is(1)) {
    // The exporter has decided how start and size compare; what that says of their ranges may be less.
    const Dim clamped = between(0, start);
    start = clamped.is_constant() ? clamped : range_of(start, c.ranges()).low < 0 ? max(start, 0) : start;
    return {start, start + length};
  }
  start = between(0, start);
  return {start, to_the_end ? size : between(start, from_start(c, c.dim("end"), size))};
}

// A slice from a place that data say is a gather: a view's place has to be known before the step runs.
static ValueId slice_from(Call& c, ValueId x, int64_t axis, const Dim& start, const Dim& length) {
  Builder& b = c.b;
  if (!c.is_from_data(start)) return b.slice(x, axis, start, start + length);
  const ValueId index =
      b.op(Op::kRange, {}, {{"dtype", DType::kI64}, {"numel", length}, {"int_start", start}, {"int_step", Dim(1)}});
  return b.op(Op::kGather, {x, index}, {{"axis", Dim(axis)}});
}

// x[start:end] where one of them is a number from data: the exporter gives its length a symbol of its own.
static bool slice_by_data(Call& c, ValueId x, int64_t axis, const Dim& size, const Dim& length) {
  if (c.has("step") && !c.dim("step").is(1)) return false;
  const auto place = [&](std::string_view name, const Dim& fallback) {
    const bool is_given = c.has(name) && !(c.dim(name).is_constant() && c.dim(name).constant() > (int64_t{1} << 60));
    const Dim at = is_given ? c.dim(name) : fallback;
    return simplify(min(max(from_start(c, at, size), Dim(0)), size), c.ranges());
  };
  const Dim start = place("start", 0), end = place("end", size);
  c.set_size(length, c.b.scalar_dim(max(end - start, Dim(0)), DType::kI64), size);
  return c.result(slice_from(c, x, axis, start, length));
}

bool lower_slice(Call& c) {
  const ValueId x = c.tensor("self");
  const int64_t axis = c.axis("dim", c.b.rank(x));
  const Dim size = c.b.shape(x)[static_cast<size_t>(axis)];
  const Dim& wanted = c.shape()[static_cast<size_t>(axis)];
  const bool by_data =
      (c.has("start") && c.is_from_data(c.dim("start"))) || (c.has("end") && c.is_from_data(c.dim("end")));
  if (by_data) return slice_by_data(c, x, axis, size, wanted);
  const auto [start, end] = slice_bounds(c, size, c.shape()[static_cast<size_t>(axis)]);
  return c.result(c.b.slice(x, axis, start, end, c.has("step") ? c.dim("step") : Dim(1)));
}

bool lower_narrow(Call& c) {
  const ValueId x = c.tensor("self");
  const int64_t axis = c.axis("dim", c.b.rank(x));
  const Dim start = from_start(c, c.dim("start"), c.b.shape(x)[static_cast<size_t>(axis)]);
  return c.result(slice_from(c, x, axis, start, c.shape()[static_cast<size_t>(axis)]));
}

bool lower_select(Call& c) {
  const ValueId x = c.tensor("self");
  const int64_t axis = c.axis("dim", c.b.rank(x));
  const Dim index = from_start(c, c.dim("index"), c.b.shape(x)[static_cast<size_t>(axis)]);
  return c.result(c.b.squeeze(slice_from(c, x, axis, index, 1), {axis}));
}

// split, chunk, split_with_sizes …: consecutive slices of the output's sizes.
bool lower_split(Call& c) {
  const ValueId x = c.tensor("self");
  const int64_t axis = c.axis("dim", c.b.rank(x));
  const Dim size = c.b.shape(x)[static_cast<size_t>(axis)];
  // An unwanted output has no type: its size is that of the argument that made it.
  const bool named_alike = c.node().target == "aten::split.sizes";  // its list is called split_size
  const std::vector<Dim> sizes = c.dims(named_alike ? "split_size" : "split_sizes");
  Dim start = 0;
  for (size_t i = 0; i < c.output_count(); ++i) {
    Dim length = c.has("split_size") && !named_alike ? c.dim("split_size") : Dim(0);
    if (i < sizes.size()) length = sizes[i];
    if (c.has("chunks")) length = floordiv(size + c.dim("chunks") - 1, c.dim("chunks"));
    if (c.wants(i)) length = c.shape(i)[static_cast<size_t>(axis)];
    if (c.wants(i)) c.result(slice_from(c, x, axis, start, length), i);
    start = start + length;
  }
  return true;
}

bool lower_unbind(Call& c) {
  const ValueId x = c.tensor("self");
  const int64_t axis = c.axis("dim", c.b.rank(x));
  for (size_t i = 0; i < c.output_count(); ++i)
    if (c.wants(i))
      c.result(c.b.squeeze(c.b.slice(x, axis, Dim(static_cast<int64_t>(i)), Dim(static_cast<int64_t>(i) + 1)), {axis}),
               i);
  return true;
}

bool lower_broadcast_tensors(Call& c) {
  const std::vector<ValueId> tensors = c.tensors("tensors");
  for (size_t i = 0; i < tensors.size(); ++i)
    if (c.wants(i)) c.result(c.b.expand(tensors[i], c.shape(i)), i);
  return true;
}

bool lower_meshgrid(Call& c) {
  const std::vector<ValueId> tensors = c.tensors("tensors");
  const bool swapped = c.text("indexing", "ij") == "xy" && tensors.size() >= 2;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!c.wants(i)) continue;
    const size_t axis = swapped && i < 2 ? 1 - i : i;
    Shape shape(tensors.size(), Dim(1));
    shape[axis] = c.shape(i)[axis];
    c.result(c.b.expand(c.b.reshape(tensors[i], shape), c.shape(i)), i);
  }
  return true;
}

// as_strided reads memory, and ours is row-major. "memory": the dims of the operand as they lie in PyTorch's, the
// outermost first, where the operand is all of its memory; absent where capture does not know that.
bool lower_as_strided(Call& c) {
  Builder& b = c.b;
  if (!c.has("memory")) c.unsupported("it reads memory of which the operand is not known to be all");
  std::vector<int64_t> order;
  for (const Dim& dim : c.dims("memory")) order.push_back(dim.constant());
  const ValueId x = b.transpose(c.tensor("self"), order);
  const std::vector<Dim> strides = c.dims("stride");
  ValueId index = c.constant(c.has("storage_offset") ? c.number("storage_offset") : Number(Dim(0)), DType::kI64);
  for (size_t i = 0; i < strides.size(); ++i) {
    Shape shape(strides.size(), Dim(1));
    shape[i] = c.shape()[i];
    const ValueId steps = b.op(
        Op::kRange, {}, {{"dtype", DType::kI64}, {"numel", shape[i]}, {"int_start", Dim(0)}, {"int_step", strides[i]}});
    index = b.add(index, b.reshape(steps, shape));
  }
  return c.result(b.op(Op::kGather, {b.reshape(x, {numel(b.shape(x))}), index}, {{"axis", Dim(0)}}));
}

// unfold(dimension, size, step): windows as a gather of constant indices, the window's elements last.
bool lower_unfold(Call& c) {
  const ValueId x = c.tensor("self");
  const int64_t rank = c.b.rank(x);
  if (rank == 0) return false;
  const int64_t axis = c.axis("dimension", rank);
  const Dim windows = c.shape()[static_cast<size_t>(axis)], size = c.dim("size");
  auto range = [&](const Dim& numel, const Dim& step) {
    return c.b.op(Op::kRange, {},
                  {{"dtype", DType::kI64}, {"numel", numel}, {"int_start", Dim(0)}, {"int_step", step}});
  };
  const ValueId index = c.b.add(c.b.unsqueeze(range(windows, c.dim("step")), {1}), range(size, 1));
  const ValueId gathered = c.b.op(Op::kGather, {x, index}, {{"axis", Dim(axis)}});
  std::vector<int64_t> perm;
  for (int64_t i = 0; i <= rank; ++i)
    if (i != axis + 1) perm.push_back(i);
  perm.push_back(axis + 1);
  return c.result(c.b.transpose(gathered, perm));
}

}  // namespace lowtide
