// What processes do together: parameters are gathered from their shards, gradients are reduced to shards.
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
  y.shape[0] = y.shape[0] * Dim(ranks);
  if (args.has(1))
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

void grad_all_gather(GradContext& c) {
  if (c.wants(0)) c.set(0, c.b().op(Op::kReduceScatter, {c.dy()}, c.node().attrs));
  if (!c.wants(1)) return;
  const Shape& shape = c.type(c.in(1)).shape;
  c.set(1, c.b().reshape(c.b().slice(c.dy(), 0, 0, numel(shape)), shape));
}

}  // namespace lowtide
