// Calls whose results are as large as their data say.
#include "lower/chosen.h"
#include "lower/targets.h"
#include "ops/rule.h"

namespace lowtide {

ValueId count_chosen(Call& c, ValueId mask, const Dim& size) {
  const ValueId condition = c.b.cast(mask, DType::kBool);
  c.set_size(size, c.count(condition), numel(c.b.shape(mask)));
  return condition;
}

Shape with_mask_dims_as_one(Call& c, ValueId x, ValueId mask) {
  Shape shape{numel(c.b.shape(mask))};
  shape.insert(shape.end(), c.b.shape(x).begin() + c.b.rank(mask), c.b.shape(x).end());
  return shape;
}

ValueId chosen_rows(Call& c, ValueId x, ValueId mask, const Dim& size) {
  Builder& b = c.b;
  const ValueId condition = b.reshape(count_chosen(c, mask, size), {numel(b.shape(mask))});
  return b.op(Op::kCompress, {b.reshape(x, with_mask_dims_as_one(c, x, mask)), condition}, {{"size", size}});
}

// nonzero, and where(condition), which gives each column for itself.
bool lower_nonzero(Call& c) {
  Builder& b = c.b;
  const bool in_columns = c.node().target != "aten::nonzero.default";
  const ValueId x = c.has("self") ? c.tensor("self") : c.tensor("condition");
  for (size_t i = 0; i < c.output_count(); ++i) {
    if (!c.wants(i)) continue;
    const Dim size = c.shape(i)[0];
    const ValueId places = b.op(Op::kNonZero, {count_chosen(c, x, size)}, {{"size", size}});
    if (!in_columns) return c.result(places);
    const int64_t column = static_cast<int64_t>(i);
    c.result(b.reshape(b.slice(places, 1, column, column + 1), {size}), i);
  }
  return true;
}

bool lower_masked_select(Call& c) {
  Builder& b = c.b;
  const Shape shape = broadcast(b.shape(c.tensor("self")), b.shape(c.tensor("mask")));
  const ValueId x = b.expand(c.tensor("self"), shape), mask = b.expand(c.tensor("mask"), shape);
  return c.result(chosen_rows(c, x, mask, c.shape()[0]));
}

// The source may be longer than the mask has places.
bool lower_masked_scatter(Call& c) {
  Builder& b = c.b;
  const Shape shape = c.shape(), flat{numel(c.shape())};
  const ValueId x = b.reshape(b.expand(c.operand("self", c.dtype()), shape), flat);
  const ValueId mask = b.reshape(b.expand(c.tensor("mask"), shape), flat);
  const ValueId source = c.operand("source", c.dtype());
  const Dim length = numel(b.shape(source)), size = c.fresh_size();
  const ValueId condition = b.cast(mask, DType::kBool);
  c.set_size(size, c.count(condition), min(flat[0], length));
  const ValueId updates = b.slice(b.reshape(source, {length}), 0, 0, size);
  return c.result(b.reshape(b.op(Op::kMaskedScatter, {x, condition, updates}), shape));
}

// ---- unique

static ValueId range(Builder& b, const Dim& numel) {
  return b.op(Op::kRange, {}, {{"dtype", DType::kI64}, {"numel", numel}, {"int_start", Dim(0)}, {"int_step", Dim(1)}});
}

static ValueId scatter_ones(Builder& b, const Dim& size, ValueId places) {
  const ValueId zeros = b.expand(b.scalar_dim(0, DType::kI64), {size});
  const ValueId ones = b.expand(b.scalar_dim(1, DType::kI64), b.shape(places));
  return b.op(Op::kScatterElements, {zeros, places, ones}, {{"axis", Dim(0)}, {"reduction", std::string("add")}});
}

// Of a sorted x, or of what is unique among neighbours: the first of each run of equals.
static bool unique(Call& c, bool sorts) {
  Builder& b = c.b;
  const ValueId x = c.tensor("self");
  const Dim count = numel(b.shape(x));
  ValueId values = b.op(Op::kDetach, {b.reshape(x, {count})}), order;
  if (sorts) {
    const NodeId sort = b.node(Op::kSort, {values}, {{"axis", Dim(0)}, {"descending", false}});
    values = b.graph().node(sort).outputs[0];
    order = b.graph().node(sort).outputs[1];
  }
  const ValueId before = b.op(Op::kRoll, {values}, {{"axes", std::vector<Dim>{0}}, {"shifts", std::vector<Dim>{1}}});
  const ValueId is_first = b.op(Op::kOr, {b.op(Op::kNotEqual, {values, before}),
                                          b.op(Op::kEqual, {range(b, count), b.scalar_dim(0, DType::kI64)})});
  const Dim size = c.shape(0)[0];
  c.result(chosen_rows(c, values, is_first, size), 0);
  // Which of the unique ones each element is, in the order that they were found in.
  ValueId which = b.op(Op::kCumSum, {b.cast(is_first, DType::kI64)}, {{"axis", Dim(0)}});
  which = b.sub(which, b.scalar_dim(1, DType::kI64));
  for (size_t output : {size_t{1}, size_t{2}}) {
    if (!c.wants(output)) continue;
    const bool is_asked = c.flag(output == 1 ? "return_inverse" : "return_counts");
    if (!is_asked) {
      c.result(c.full(c.shape(output), Dim(0), DType::kI64), output);
    } else if (output == 2) {
      c.result(scatter_ones(b, size, which), output);
    } else {
      const ValueId zeros = b.expand(b.scalar_dim(0, DType::kI64), {count});
      const ValueId inverse = sorts ? b.op(Op::kScatterElements, {zeros, order, which},
                                           {{"axis", Dim(0)}, {"reduction", std::string("none")}})
                                    : which;
      c.result(b.reshape(inverse, c.shape(output)), output);
    }
  }
  return true;
}

bool lower_unique(Call& c) { return unique(c, true); }
bool lower_unique_consecutive(Call& c) {
  if (c.has("dim")) c.unsupported("the size of its result depends on data, along one dim");
  return unique(c, false);
}

// ---- repeat_interleave by a tensor: row i, repeats[i] times

bool lower_repeat_by_tensor(Call& c) {
  Builder& b = c.b;
  ValueId x = c.tensor("self");
  int64_t axis = 0;
  if (c.has("dim") && b.rank(x) > 0)
    axis = c.axis("dim", b.rank(x));
  else
    x = b.reshape(x, {numel(b.shape(x))});
  const Dim rows = b.shape(x)[static_cast<size_t>(axis)], size = c.shape()[static_cast<size_t>(axis)];
  if (!c.has("output_size"))
    c.unsupported("the size of its result depends on data without a bound: output_size gives it one");
  const ValueId repeats = b.expand(b.cast(c.tensor("repeats"), DType::kI64), {rows});
  const ValueId ends = b.op(Op::kCumSum, {repeats}, {{"axis", Dim(0)}});
  c.set_size(size, b.reduce(Op::kReduceSum, repeats, {0}, false), size);
  // How many rows have ended before each place.
  const ValueId passed = b.slice(scatter_ones(b, size + 1, ends), 0, 0, size);
  const ValueId row = b.op(Op::kCumSum, {passed}, {{"axis", Dim(0)}});
  return c.result(b.op(Op::kGather, {x, row}, {{"axis", Dim(axis)}}));
}

// ---- how many elements lie in each of `bins` parts of [min, max]

bool lower_histc(Call& c) {
  Builder& b = c.b;
  const double low = c.real("min", 0), high = c.real("max", 0);
  if (low == high) return false;  // of the data's own range
  const DType dtype = c.dtype();
  const int64_t bins = c.integer("bins", 100);
  const ValueId x = b.op(Op::kDetach, {b.reshape(c.operand("self", dtype), {numel(b.shape(c.tensor("self")))})});
  const ValueId inside = b.op(Op::kAnd, {b.op(Op::kGreaterOrEqual, {x, b.scalar(low, dtype)}),
                                         b.op(Op::kLessOrEqual, {x, b.scalar(high, dtype)})});
  const ValueId scaled = b.op(Op::kDiv, {b.mul(b.sub(x, b.scalar(low, dtype)), static_cast<double>(bins)),
                                         b.sub(b.scalar(high, dtype), b.scalar(low, dtype))});
  // The last part holds its end.
  const ValueId part = b.op(Op::kMin, {b.cast(scaled, DType::kI64), b.scalar_dim(bins - 1, DType::kI64)});
  const ValueId place = b.op(Op::kWhere, {inside, part, b.scalar_dim(0, DType::kI64)});
  return c.result(b.op(Op::kScatterElements, {c.full({bins}, 0.0, dtype), place, b.cast(inside, dtype)},
                       {{"axis", Dim(0)}, {"reduction", std::string("add")}}));
}

bool lower_data_dependent(Call& c) { c.unsupported("the size of its result depends on data"); }

}  // namespace lowtide
