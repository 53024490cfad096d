// Gathers and scatters by index tensors.
#include <numeric>
#include <optional>

#include "lower/chosen.h"
#include "lower/targets.h"
#include "ops/inference.h"
#include "ops/rule.h"

namespace lowtide {

bool lower_embedding(Call& c) {
  if (c.flag("scale_grad_by_freq")) return false;
  Attrs attrs{{"axis", Dim(0)}};
  if (const int64_t padding = c.integer("padding_idx", -1); padding >= 0) attrs.set("padding_idx", Dim(padding));
  return c.result(c.b.op(Op::kGather, {c.tensor("weight"), c.tensor("indices")}, attrs));
}

// An empty index may have any dtype.
static ValueId index_of(Call& c) {
  const ValueId index = c.tensor("index");
  return c.b.dtype(index) == DType::kI32 ? index : c.b.cast(index, DType::kI64);
}

bool lower_gather(Call& c) {
  const ValueId x = c.tensor("self"), index = index_of(c);
  if (c.b.rank(x) == 0 || c.b.rank(index) != c.b.rank(x)) return false;
  return c.result(c.b.op(Op::kGatherElements, {x, index}, {{"axis", Dim(c.axis("dim", c.b.rank(x)))}}));
}

static bool search_sorted(Call& c, ValueId ascending, ValueId values, bool right) {
  Builder& b = c.b;
  const DType dtype = b.dtype(ascending);
  if (dtype == DType::kBool || b.dtype(values) != dtype || b.rank(ascending) == 0) return false;
  if (b.rank(ascending) > 1) {
    Shape rows = b.shape(values);
    if (rows.size() != b.shape(ascending).size()) return false;
    rows.back() = b.shape(ascending).back();
    if (rows != b.shape(ascending)) return false;
  }
  return c.result(b.op(Op::kSearchSorted, {ascending, values}, {{"right", right}}));
}

bool lower_searchsorted(Call& c) {
  ValueId ascending = c.tensor("sorted_sequence");
  if (c.is_tensor("sorter")) {
    const ValueId sorter = c.tensor("sorter");
    const int64_t rank = c.b.rank(ascending);
    if (rank == 0 || c.b.shape(sorter) != c.b.shape(ascending) || c.b.dtype(sorter) != DType::kI64) return false;
    ascending = c.b.op(Op::kGatherElements, {ascending, sorter}, {{"axis", Dim(rank - 1)}});
  }
  return search_sorted(c, ascending, c.tensor("self"), c.flag("right") || c.text("side") == "right");
}

bool lower_bucketize(Call& c) {
  const ValueId boundaries = c.tensor("boundaries");
  return c.b.rank(boundaries) == 1 && search_sorted(c, boundaries, c.tensor("self"), c.flag("right"));
}

bool lower_take_along_dim(Call& c) {
  ValueId x = c.tensor("self"), index = c.tensor("indices");
  if (!c.has("dim"))
    return c.result(c.b.op(Op::kGather, {c.b.reshape(x, {numel(c.b.shape(x))}), c.b.reshape(index, c.shape())},
                           {{"axis", Dim(0)}}));
  const size_t axis = static_cast<size_t>(c.axis("dim", c.b.rank(x)));
  Shape data = c.shape();
  data[axis] = c.b.shape(x)[axis];
  x = c.b.expand(x, data);
  index = c.b.expand(index, c.shape());
  return c.result(c.b.op(Op::kGatherElements, {x, index}, {{"axis", Dim(static_cast<int64_t>(axis))}}));
}

bool lower_index_select(Call& c) {
  const ValueId x = c.tensor("self");
  if (c.b.rank(x) == 0) return false;
  const int64_t axis = c.axis("dim", c.b.rank(x));
  ValueId index = c.tensor("index");
  if (c.b.rank(index) == 0) index = c.b.reshape(index, {1});
  return c.result(c.b.op(Op::kGather, {x, index}, {{"axis", Dim(axis)}}));
}

// ---- scatter along one dim

static std::string reduction(const std::string& torch_name) {
  if (torch_name == "sum" || torch_name == "add") return "add";
  if (torch_name == "prod" || torch_name == "multiply") return "mul";
  if (torch_name == "amax") return "max";
  if (torch_name == "amin") return "min";
  return "";
}

namespace {

struct Scatter {
  ValueId x, index, source;
  int64_t axis;

  ValueId into(Builder& b, ValueId base, ValueId updates, const std::string& how) const {
    return b.op(Op::kScatterElements, {base, index, updates}, {{"axis", Dim(axis)}, {"reduction", how}});
  }
};

}  // namespace

static std::optional<Scatter> scatter_of(Call& c) {
  const ValueId x = c.operand("self", c.dtype()), index = index_of(c);
  if (c.b.rank(x) == 0 || c.b.rank(index) == 0) return std::nullopt;
  // The source may be larger than the index: only its leading part is read.
  ValueId source =
      c.has("src") ? c.operand("src", c.dtype()) : c.b.expand(c.operand("value", c.dtype()), c.b.shape(index));
  const Shape& wanted = c.b.shape(index);
  for (size_t i = 0; i < wanted.size(); ++i)
    if (c.b.shape(source)[i] != wanted[i]) source = c.b.slice(source, static_cast<int64_t>(i), 0, wanted[i]);
  return Scatter{x, index, source, c.axis("dim", c.b.rank(x))};
}

static bool scatter(Call& c, const std::string& how) {
  const std::optional<Scatter> s = scatter_of(c);
  return s && c.result(s->into(c.b, s->x, s->source, how));
}

static ValueId zeros_like(Builder& b, ValueId like) { return b.full(b.shape(like), 0, b.dtype(like)); }

// The sum divided by the number of its terms; an entry that nothing is written to stays.
static ValueId scattered_mean(Builder& b, const Scatter& s, bool with_old) {
  const DType dtype = b.dtype(s.x);
  const ValueId ones = b.full(b.shape(s.source), 1, dtype);
  if (with_old) return b.div(s.into(b, s.x, s.source, "add"), s.into(b, b.full(b.shape(s.x), 1, dtype), ones, "add"));
  const ValueId count = s.into(b, zeros_like(b, s.x), ones, "add");
  const ValueId unwritten = b.op(Op::kEqual, {count, b.scalar(0, dtype)});
  const ValueId base = b.op(Op::kWhere, {unwritten, s.x, b.scalar(0, dtype)});
  return b.div(s.into(b, base, s.source, "add"), b.op(Op::kMax, {count, b.scalar(1, dtype)}));
}

bool lower_scatter(Call& c) { return scatter(c, "none"); }
bool lower_scatter_add(Call& c) { return scatter(c, "add"); }

// Without the old entry, sums begin with 0 where something is written, and extremes with one of the updates.
bool lower_scatter_reduce(Call& c) {
  const bool is_mean = c.text("reduce") == "mean", with_old = c.flag("include_self", true);
  const std::string how = is_mean ? "add" : reduction(c.text("reduce"));
  if (how.empty() || (!with_old && c.dtype() == DType::kBool)) return false;
  if (how == "mul" && (is_float(c.dtype()) || !with_old)) return false;  // products of factors have no gradient rule
  if (is_mean && !is_float(c.dtype())) return false;                     // rounds down
  const std::optional<Scatter> s = scatter_of(c);
  if (!s) return false;
  Builder& b = c.b;
  if (is_mean) return c.result(scattered_mean(b, *s, with_old));
  if (with_old) return c.result(s->into(b, s->x, s->source, how));
  if (how == "add") return c.result(s->into(b, s->into(b, s->x, zeros_like(b, s->source), "none"), s->source, how));
  return c.result(b.op(Op::kScatterElements, {s->x, s->index, s->source},
                       {{"axis", Dim(s->axis)}, {"reduction", how}, {"anew", true}}));
}

// ---- whole slices along one dim: index_add, index_copy, index_fill

static std::vector<int64_t> axis_to_front(int64_t axis, int64_t rank) {
  std::vector<int64_t> perm{axis};
  for (int64_t i = 0; i < rank; ++i)
    if (i != axis) perm.push_back(i);
  return perm;
}

static std::vector<int64_t> inverse(const std::vector<int64_t>& perm) {
  std::vector<int64_t> result(perm.size());
  for (size_t i = 0; i < perm.size(); ++i) result[static_cast<size_t>(perm[i])] = static_cast<int64_t>(i);
  return result;
}

static ValueId as_column(Builder& b, ValueId index) {
  index = b.cast(index, DType::kI64);
  return b.reshape(index, {numel(b.shape(index)), 1});
}

// A Where and no scatter: the value's gradient counts a place once, however often the index names it.
static bool fill_slices(Call& c, ValueId x, int64_t axis) {
  Builder& b = c.b;
  const Dim size = b.shape(x)[static_cast<size_t>(axis)];
  const ValueId index = as_column(b, c.tensor("index"));
  const ValueId chosen = b.op(
      Op::kScatterND, {c.full({size}, false, DType::kBool), index, c.full({b.shape(index)[0]}, true, DType::kBool)},
      {{"reduction", std::string("none")}});
  Shape shape(static_cast<size_t>(b.rank(x)), Dim(1));
  shape[static_cast<size_t>(axis)] = size;
  return c.result(b.op(Op::kWhere, {b.reshape(chosen, shape), c.operand("value", c.dtype()), x}));
}

bool lower_index_write(Call& c) {
  Builder& b = c.b;
  const DType dtype = c.dtype();
  const ValueId x = c.operand("self", dtype);
  const int64_t rank = b.rank(x);
  if (rank == 0) return false;
  const int64_t axis = c.axis("dim", rank);
  const bool adds = c.node().target == "aten::index_add.default";
  if (adds && dtype == DType::kBool) return false;
  if (c.node().target.starts_with("aten::index_fill.")) return fill_slices(c, x, axis);
  ValueId updates = c.has("source") ? c.operand("source", dtype) : c.operand("value", dtype);
  if (adds && c.has("alpha") && c.real("alpha") != 1) updates = b.mul(updates, c.constant(c.number("alpha"), dtype));
  Shape shape = c.shape();
  shape[static_cast<size_t>(axis)] = numel(b.shape(c.tensor("index")));
  if (b.rank(updates) > 1) {
    if (b.rank(updates) != rank) return false;
    // The exporter compares no sizes: a step of the graph does.
    for (int64_t i = 0; i < rank; ++i) {
      const Dim size = b.shape(updates)[static_cast<size_t>(i)], wanted = shape[static_cast<size_t>(i)];
      if (dims_agree(size, wanted, c.ranges())) continue;
      c.check_equal(size, wanted);
      updates = b.slice(updates, i, 0, wanted);
    }
  }
  updates = b.rank(updates) == 0 ? b.expand(updates, shape) : b.reshape(updates, shape);
  const std::vector<int64_t> perm = axis_to_front(axis, rank);
  const ValueId data = b.transpose(x, perm);
  const ValueId written = b.op(Op::kScatterND, {data, as_column(b, c.tensor("index")), b.transpose(updates, perm)},
                               {{"reduction", std::string(adds ? "add" : "none")}});
  return c.result(b.transpose(written, inverse(perm)));
}

// ---- advanced indexing: x[i, :, j] with tensors in some places

namespace {

// The indexed dims, their tensors broadcast to one shape, and where the result's index dims stand.
struct Indices {
  std::vector<int64_t> axes;
  std::vector<ValueId> tensors;
  Shape shape;                // broadcast shape of the tensors
  int64_t at = 0;             // first index dim in the result: that of the first tensor if all are neighbours, else 0
  std::vector<int64_t> perm;  // indexed dims first, then the others
};

bool is_mask(Call& c, ValueId index) { return c.b.dtype(index) == DType::kBool || c.b.dtype(index) == DType::kU8; }

// The places at which a mask is true, as an index for each of its dims; there are `size`.
std::vector<ValueId> chosen_places(Call& c, ValueId mask, const Dim& size) {
  Builder& b = c.b;
  const ValueId places = b.op(Op::kNonZero, {count_chosen(c, mask, size)}, {{"size", size}});
  std::vector<ValueId> columns;
  for (int64_t dim = 0; dim < b.rank(mask); ++dim)
    columns.push_back(b.reshape(b.slice(places, 1, dim, dim + 1), {size}));
  return columns;
}

// `size`: of what a mask among them chooses.
Indices read_indices(Call& c, const std::vector<ValueId>& given, int64_t rank, const Dim& size) {
  Indices result;
  int64_t axis = 0;
  for (ValueId index : given) {
    if (!index) {
      ++axis;
      continue;
    }
    std::vector<ValueId> tensors;
    if (is_mask(c, index)) {
      tensors = chosen_places(c, index, size);
    } else {
      tensors = {c.b.cast(index, DType::kI64)};
    }
    for (ValueId tensor : tensors) {
      result.axes.push_back(axis++);
      result.tensors.push_back(tensor);
      result.shape = broadcast(result.shape, c.b.shape(tensor));
    }
  }
  if (result.axes.empty()) return result;
  const bool neighbours = result.axes.back() - result.axes.front() + 1 == static_cast<int64_t>(result.axes.size());
  result.at = neighbours ? result.axes.front() : 0;
  result.perm = result.axes;
  for (int64_t i = 0, next = 0; i < rank; ++i) {
    if (next < static_cast<int64_t>(result.axes.size()) && result.axes[static_cast<size_t>(next)] == i)
      ++next;
    else
      result.perm.push_back(i);
  }
  return result;
}

// How many places the masks among the indices choose: the last of the index dims of what they choose of x.
Dim chosen_size(Call& c, const std::vector<ValueId>& given, const Shape& chosen) {
  int64_t first = -1, end = -1, gaps = 0, index_rank = 0, axis = 0;
  bool has_mask = false;
  for (ValueId index : given) {
    const int64_t width = index && is_mask(c, index) ? c.b.rank(index) : 1;
    if (index) {
      has_mask = has_mask || is_mask(c, index);
      index_rank = std::max(index_rank, is_mask(c, index) ? 1 : c.b.rank(index));
      if (first < 0) first = axis;
      if (end >= 0) gaps += axis - end;
      end = axis + width;
    }
    axis += width;
  }
  if (!has_mask) return 0;
  const size_t at = static_cast<size_t>((gaps > 0 ? 0 : first) + index_rank - 1);
  return at < chosen.size() ? chosen[at] : Dim(0);
}

// What indices beside a mask say of the places that it chooses: x[mask, i] has as many as i. 1: nothing.
Dim size_beside_masks(Call& c, const std::vector<ValueId>& given) {
  for (ValueId index : given)
    if (index && !is_mask(c, index) && c.b.rank(index) > 0 && !c.b.shape(index).back().is(1))
      return c.b.shape(index).back();
  return 1;
}

// [.., K]: the tensors side by side.
ValueId index_tuples(Builder& b, const Indices& indices) {
  Shape column = indices.shape;
  column.push_back(1);
  std::vector<ValueId> columns;
  for (ValueId tensor : indices.tensors) columns.push_back(b.reshape(b.expand(tensor, indices.shape), column));
  if (columns.size() == 1) return columns[0];
  return b.op(Op::kConcat, columns, {{"axis", Dim(static_cast<int64_t>(indices.shape.size()))}});
}

// Moves the leading index dims of a result to their place (front=false), or from there to the front.
ValueId place_index_dims(Builder& b, ValueId x, const Indices& indices, bool to_front) {
  if (indices.at == 0) return x;
  const int64_t rank = b.rank(x), count = static_cast<int64_t>(indices.shape.size());
  std::vector<int64_t> perm;  // from front to place
  for (int64_t i = 0; i < indices.at; ++i) perm.push_back(count + i);
  for (int64_t i = 0; i < count; ++i) perm.push_back(i);
  for (int64_t i = count + indices.at; i < rank; ++i) perm.push_back(i);
  return b.transpose(x, to_front ? inverse(perm) : perm);
}

}  // namespace

bool lower_index(Call& c) {
  Builder& b = c.b;
  const ValueId x = c.tensor("self");
  const std::vector<ValueId> given = c.tensors("indices");
  const Dim size = chosen_size(c, given, c.shape());
  if (given.size() == 1 && given[0] && is_mask(c, given[0])) return c.result(chosen_rows(c, x, given[0], size));
  const Indices indices = read_indices(c, given, b.rank(x), size);
  if (indices.axes.empty()) return c.result(x);
  if (indices.axes.size() == 1)
    return c.result(b.op(Op::kGather, {x, indices.tensors[0]}, {{"axis", Dim(indices.axes[0])}}));
  const ValueId gathered = b.op(Op::kGatherND, {b.transpose(x, indices.perm), index_tuples(b, indices)});
  return c.result(place_index_dims(b, gathered, indices, false));
}

// x[mask] = values: a Where for values that broadcast over the places that the mask chooses.
static ValueId put_by_mask(Call& c, ValueId x, ValueId mask, ValueId values) {
  Builder& b = c.b;
  const int64_t rest = b.rank(x) - b.rank(mask);
  // The first dim of values counts the chosen places, unless it broadcasts.
  Shape found = b.shape(values);
  while (static_cast<int64_t>(found.size()) > rest && found.front().is(1)) found.erase(found.begin());
  if (static_cast<int64_t>(found.size()) <= rest) {
    Shape shape = b.shape(mask);
    shape.insert(shape.end(), static_cast<size_t>(rest), Dim(1));
    const ValueId condition = b.reshape(b.cast(mask, DType::kBool), shape);
    return b.op(Op::kWhere, {condition, b.reshape(values, found), x});
  }
  const Dim size = found.front();
  const ValueId condition = b.reshape(count_chosen(c, mask, size), {numel(b.shape(mask))});
  const Shape shape = with_mask_dims_as_one(c, x, mask);
  Shape rows = shape;
  rows[0] = size;
  const ValueId updates = b.expand(b.reshape(values, found), rows);
  return b.reshape(b.op(Op::kMaskedScatter, {b.reshape(x, shape), condition, updates}), b.shape(x));
}

bool lower_index_put(Call& c) {
  Builder& b = c.b;
  const DType dtype = c.dtype();
  const ValueId x = c.operand("self", dtype), values = c.operand("values", dtype);
  const std::vector<ValueId> given = c.tensors("indices");
  const bool adds = c.flag("accumulate");
  if (given.size() == 1 && given[0] && is_mask(c, given[0])) {
    if (!adds) return c.result(put_by_mask(c, x, given[0], values));
    return c.result(b.add(x, put_by_mask(c, c.full(c.shape(), 0.0, dtype), given[0], values)));
  }
  Dim size = size_beside_masks(c, given);
  if (size.is(1)) size = chosen_size(c, given, b.shape(values));
  // Values of one place are those of all; then nothing tells how many there are.
  if (size.is(0) || size.is(1)) size = c.fresh_size();
  const Indices indices = read_indices(c, given, b.rank(x), size);
  if (indices.axes.empty()) return false;
  Shape target = c.shape();  // of x[indices]
  for (auto axis = indices.axes.rbegin(); axis != indices.axes.rend(); ++axis) target.erase(target.begin() + *axis);
  target.insert(target.begin() + indices.at, indices.shape.begin(), indices.shape.end());
  // Leading dims of size 1 beyond the target's rank are dropped, as PyTorch does.
  Shape trimmed = b.shape(values);
  while (trimmed.size() > target.size() && trimmed.front().is(1)) trimmed.erase(trimmed.begin());
  // A free size against the indices' constant one: PyTorch's own kernel compares them in each call.
  if (!broadcasts_to(trimmed, target, c.ranges())) return false;
  const ValueId updates = place_index_dims(b, b.expand(b.reshape(values, trimmed), target), indices, true);
  const ValueId written = b.op(Op::kScatterND, {b.transpose(x, indices.perm), index_tuples(b, indices), updates},
                               {{"reduction", std::string(adds ? "add" : "none")}});
  return c.result(b.transpose(written, inverse(indices.perm)));
}

}  // namespace lowtide
