// Matrix multiply.
#include "ops/builder.h"
#include "ops/inference.h"

namespace lowtide {

// op(A) op(B) with broadcast batch dims; the transposes swap the last two dims.
static TensorType product(const InferArgs& args, bool trans_a, bool trans_b) {
  const TensorType &a = args.in(0), &b = args.in(1);
  check_float(args, 0);
  check_same_dtype(args, 0, 1);
  check_rank_at_least(args, 0, 2);
  check_rank_at_least(args, 1, 2);
  const size_t last_a = a.shape.size() - 1, last_b = b.shape.size() - 1;
  const Dim &rows = a.shape[trans_a ? last_a : last_a - 1], &inner_a = a.shape[trans_a ? last_a - 1 : last_a];
  const Dim &inner_b = b.shape[trans_b ? last_b : last_b - 1], &columns = b.shape[trans_b ? last_b - 1 : last_b];
  LT_INFER_CHECK(args, dims_agree(inner_a, inner_b, args.ranges), "inner dims differ: left is ", to_string(a),
                 trans_a ? " transposed" : "", ", right is ", to_string(b), trans_b ? " transposed" : "");
  TensorType y{a.dtype, broadcast(args, {a.shape.begin(), a.shape.end() - 2}, {b.shape.begin(), b.shape.end() - 2})};
  y.shape.push_back(rows);
  y.shape.push_back(columns);
  return y;
}

std::vector<TensorType> infer_matmul(const InferArgs& args) { return {product(args, false, false)}; }

// alpha * op(A) op(B)
std::vector<TensorType> infer_fused_matmul(const InferArgs& args) {
  return {product(args, args.attrs.b("transA"), args.attrs.b("transB"))};
}

// alpha * op(A) op(B) + beta * C
std::vector<TensorType> infer_gemm(const InferArgs& args) {
  for (size_t i : {0, 1})
    LT_INFER_CHECK(args, rank(args.in(i)) == 2, "operand ", i, " must have 2 dims, is ", to_string(args.in(i)));
  const TensorType y = product(args, args.attrs.b("transA"), args.attrs.b("transB"));
  if (args.has(2)) {
    check_same_dtype(args, 0, 2);
    LT_INFER_CHECK(args, broadcasts_to(args.in(2).shape, y.shape, args.ranges), "C is ", to_string(args.in(2)),
                   " and does not broadcast to ", to_string(y));
  }
  return {y};
}

}  // namespace lowtide
