// What processes do together: parameters are gathered from their shards, gradients are reduced to shards, and tensors
// that each holds a part of change their layout.
#include "ops/builder.h"
#include "ops/inference.h"

namespace lowtide {

static int64_t ranks_attr(const InferArgs& args) {
  const int64_t ranks = constant_attr(args, "ranks");
  LT_INFER_CHECK(args, ranks >= 1, "ranks=", ranks, ": a group has at least one process");
  check_rank_at_least(args, 0, 1);
  return ranks;
}

std::vector<TensorType> infer_all_gather(const InferArgs& args) {
  TensorType y = args.in(0);
  const int64_t ranks = ranks_attr(args);
  if (args.attrs.has("reduce")) {
    Dim parts = Dim(0);
    for (size_t i = 1; i < args.inputs.size(); ++i) parts = parts + numel(args.in(i).shape);
    LT_INFER_CHECK(args, parts == numel(y.shape), to_string(y), " is not made of ", parts, " elements");
  }
  y.shape[0] = y.shape[0] * Dim(ranks);
  if (args.has(1) && !args.attrs.has("reduce"))
    LT_INFER_CHECK(args, y.shape.size() == 1 && args.in(1).dtype == y.dtype, "the elements of ", to_string(args.in(1)),
                   " are not gathered as ", to_string(y));
  return {y};
}

std::vector<TensorType> infer_reduce_scatter(const InferArgs& args) {
  TensorType y = args.in(0);
  const int64_t ranks = ranks_attr(args);
  LT_INFER_CHECK(args, mod(y.shape[0], Dim(ranks)).is(0), "dim 0 of ", to_string(y), " is no multiple of ", ranks);
  y.shape[0] = floordiv(y.shape[0], Dim(ranks));
  return {y};
}

std::vector<TensorType> infer_redistribute(const InferArgs& args) {
  TensorType y = args.in(0);
  const int64_t ranks = ranks_attr(args), axis = constant_attr(args, "axis");
  const std::string& kind = args.attrs.s("kind");
  LT_INFER_CHECK(args, axis >= 0 && axis < static_cast<int64_t>(y.shape.size()), "axis=", axis, " is no dim of ",
                 to_string(y));
  Dim& along = y.shape[static_cast<size_t>(axis)];
  if (kind == "gather") {
    along = along * Dim(ranks);
  } else if (kind == "scatter" || kind == "part") {
    if (along.is_constant())
      LT_INFER_CHECK(args, along.constant() % ranks == 0, "dim ", axis, " of ", to_string(y), " is no multiple of ",
                     ranks);
    along = floordiv(along, Dim(ranks));
  } else {
    LT_INFER_CHECK(args, kind == "same" || kind == "sum" || kind == "share", "no redistribution is called ", kind);
  }
  return {y};
}

void grad_redistribute(GradContext& c) {
  if (!c.wants(0)) return;
  Attrs attrs = c.node().attrs;
  const std::string kind = attrs.s("kind"), gradient = attrs.s("gradient");
  if (gradient == "same") {
    c.set(0, c.dy());
    return;
  }
  attrs.set("kind", gradient);
  attrs.set("gradient", kind);
  c.set(0, c.b().op(Op::kRedistribute, {c.dy()}, attrs));
}

// The mean in another dtype than that of the gradient, for what was joined.
static void grad_reduced(GradContext& c) {
  Builder& b = c.b();
  const Attrs& attrs = c.node().attrs;
  const ValueId whole = b.cast(c.dy(), attrs.t("reduce"));
  const ValueId mean =
      b.op(Op::kReduceScatter, {whole}, {{"group", attrs.dim("group")}, {"ranks", attrs.dim("ranks")}});
  const ValueId flat = b.reshape(mean, {numel(c.type(c.in(0)).shape)});
  Dim begin(0);
  for (size_t i = 1; i < c.node().inputs.size(); ++i) {
    const TensorType& type = c.type(c.in(i));
    const Dim end = begin + numel(type.shape);
    if (c.wants(i)) c.set(i, b.cast(b.reshape(b.slice(flat, 0, begin, end), type.shape), type.dtype));
    begin = end;
  }
}

void grad_all_gather(GradContext& c) {
  if (c.node().attrs.has("reduce")) {
    grad_reduced(c);
    return;
  }
  if (c.wants(0)) c.set(0, c.b().op(Op::kReduceScatter, {c.dy()}, c.node().attrs));
  if (!c.wants(1)) return;
  const Shape& shape = c.type(c.in(1)).shape;
  c.set(1, c.b().reshape(c.b().slice(c.dy(), 0, 0, numel(shape)), shape));
}

}  // namespace lowtide
