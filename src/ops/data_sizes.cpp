// Sizes from data: counts, and what has as many rows as were counted.
#include "ops/builder.h"
#include "ops/inference.h"

namespace lowtide {

static void check_condition(const InferArgs& args, size_t input) {
  LT_INFER_CHECK(args, args.in(input).dtype == DType::kBool, "the condition must be bool, is ",
                 to_string(args.in(input)));
}

std::vector<TensorType> infer_count_true(const InferArgs& args) {
  check_condition(args, 0);
  return {{DType::kI64, {}}};
}

std::vector<TensorType> infer_data_size(const InferArgs& args) {
  const TensorType& count = args.in(0);
  LT_INFER_CHECK(args, count.dtype == DType::kI64 && count.shape.empty(), "a size is an i64 number, not ",
                 to_string(count));
  LT_INFER_CHECK(args, args.has(1) == args.attrs.has("without") && (!args.has(1) || is_integer(args.in(1).dtype)),
                 "what is counted are integers, and `without` tells which of them are not");
  LT_INFER_CHECK(args, args.attrs.dim("low").is_constant(), "low is ", to_string(args.attrs.dim("low")));
  return {count};
}

// y[k, :] = the k-th index at which x is true
std::vector<TensorType> infer_non_zero(const InferArgs& args) {
  check_condition(args, 0);
  return {{DType::kI64, {args.attrs.dim("size"), rank(args.in(0))}}};
}

static void check_rows(const InferArgs& args) {
  check_rank_at_least(args, 0, 1);
  check_condition(args, 1);
  const Shape rows{args.in(0).shape[0]};
  LT_INFER_CHECK(args, shapes_agree(args.in(1).shape, rows, args.ranges), "the condition is ", to_string(args.in(1)),
                 ", x ", to_string(args.in(0)));
}

// y[k, ..] = x[i, ..], i the k-th row with condition[i]
std::vector<TensorType> infer_compress(const InferArgs& args) {
  check_rows(args);
  TensorType y = args.in(0);
  y.shape[0] = args.attrs.dim("size");
  return {y};
}

// y[i, ..] = condition[i] ? updates[k, ..] : data[i, ..], i the k-th row with condition[i]
std::vector<TensorType> infer_masked_scatter(const InferArgs& args) {
  check_rows(args);
  check_same_dtype(args, 0, 2);
  const TensorType &data = args.in(0), &updates = args.in(2);
  Shape expected = data.shape;
  if (!updates.shape.empty()) expected[0] = updates.shape[0];
  check_shape(args, 2, "updates", expected);
  return {data};
}

void grad_compress(GradContext& c) {
  const TensorType& x = c.type(c.in(0));
  c.set(0, c.b().op(Op::kMaskedScatter, {c.b().full(x.shape, 0.0, x.dtype), c.in(1), c.dy()}));
}

void grad_masked_scatter(GradContext& c) {
  Builder& b = c.b();
  const Dim size = c.type(c.in(2)).shape[0];
  const TensorType& data = c.type(c.in(0));
  if (c.wants(0)) {
    Shape shape(data.shape.size(), Dim(1));
    shape[0] = data.shape[0];
    c.set(0, b.op(Op::kWhere, {b.reshape(c.in(1), shape), b.scalar(0, data.dtype), c.dy()}));
  }
  if (c.wants(2)) c.set(2, b.op(Op::kCompress, {c.dy(), c.in(1)}, {{"size", size}}));
}

}  // namespace lowtide
