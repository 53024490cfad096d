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

// What to do with A and B of y = alpha * op(A) op(B).
struct Product {
  bool trans_a = false, trans_b = false;
  double alpha = 1.0;
};

// op(left) op(right) of 2-d operands, or of batches.
static ValueId multiply(Builder& b, ValueId left, bool trans_left, ValueId right, bool trans_right, double alpha) {
  Attrs attrs{{"transA", trans_left}, {"transB", trans_right}, {"alpha", alpha}};
  if (b.rank(left) == 2 && b.rank(right) == 2) {
    attrs.set("beta", 1.0);
    return b.op(Op::kGemm, {left, right}, std::move(attrs));
  }
  return b.op(Op::kFusedMatMul, {left, right}, std::move(attrs));
}

// With Y = alpha A' B', A' = op(A), B' = op(B):  dA' = alpha dY B'^T,  dB' = alpha A'^T dY, each written without a
// transposition.
static void grad_product(GradContext& c, Product p) {
  Builder& b = c.b();
  const ValueId a = c.in(0), w = c.in(1);
  const Shape a_shape = c.type(a).shape, w_shape = c.type(w).shape;
  ValueId dy = c.dy();
  // A batch times one matrix is one large matrix times it: its rows need no batch, and the gradient of B is one
  // product, not a sum of many.
  const bool flat = w_shape.size() == 2 && a_shape.size() > 2 && !p.trans_a;
  const auto rows = [&](ValueId x) {
    const Shape& shape = b.shape(x);
    return b.reshape(x, {numel({shape.begin(), shape.end() - 1}), shape.back()});
  };
  if (flat) dy = rows(dy);
  // The weight's first: it is the last to read a saved activation, whose bytes the other gradient then takes.
  if (c.wants(1)) {
    const ValueId left = flat ? rows(a) : a;
    const ValueId dw =
        p.trans_b ? multiply(b, dy, true, left, p.trans_a, p.alpha) : multiply(b, left, !p.trans_a, dy, false, p.alpha);
    c.set(1, b.reduce_to(dw, w_shape));
  }
  if (c.wants(0)) {
    const ValueId da =
        p.trans_a ? multiply(b, w, p.trans_b, dy, true, p.alpha) : multiply(b, dy, false, w, !p.trans_b, p.alpha);
    c.set(0, flat ? b.reshape(da, a_shape) : b.reduce_to(da, a_shape));
  }
}

void grad_matmul(GradContext& c) { grad_product(c, {}); }

void grad_fused_matmul(GradContext& c) {
  grad_product(c, {c.attrs().b("transA"), c.attrs().b("transB"), c.attrs().f("alpha")});
}

void grad_gemm(GradContext& c) {
  grad_product(c, {c.attrs().b("transA"), c.attrs().b("transB"), c.attrs().f("alpha")});
  if (!c.wants(2)) return;
  const ValueId sum = c.b().reduce_to(c.dy(), c.type(c.in(2)).shape);
  const double beta = c.attrs().f("beta");
  c.set(2, beta == 1.0 ? sum : c.b().mul(sum, beta));
}

// ---- groups of rows, each times its own matrix

static void check_groups(const InferArgs& args) {
  check_float(args, 0);
  check_same_dtype(args, 0, 1);
  check_index_dtype(args, 2);
  LT_INFER_CHECK(args, rank(args.in(0)) == 2 && rank(args.in(2)) == 1, "a is ", to_string(args.in(0)), ", ends are ",
                 to_string(args.in(2)));
}

std::vector<TensorType> infer_grouped_matmul(const InferArgs& args) {
  check_groups(args);
  const TensorType &a = args.in(0), &b = args.in(1);
  LT_INFER_CHECK(args, rank(b) == 3 && dims_agree(b.shape[0], args.in(2).shape[0], args.ranges), "b is ", to_string(b),
                 ", ends are ", to_string(args.in(2)));
  const bool transposed = args.attrs.b("transB");
  LT_INFER_CHECK(args, dims_agree(a.shape[1], b.shape[transposed ? 2 : 1], args.ranges), "inner dims differ: a is ",
                 to_string(a), ", b is ", to_string(b), transposed ? " transposed" : "");
  return {{a.dtype, {a.shape[0], b.shape[transposed ? 1 : 2]}}};
}

std::vector<TensorType> infer_grouped_matmul_grad(const InferArgs& args) {
  check_groups(args);
  const TensorType &a = args.in(0), &dy = args.in(1);
  LT_INFER_CHECK(args, rank(dy) == 2 && dims_agree(a.shape[0], dy.shape[0], args.ranges), "a is ", to_string(a),
                 ", dy is ", to_string(dy));
  const Dim &inner = a.shape[1], &columns = dy.shape[1], &groups = args.in(2).shape[0];
  if (args.attrs.b("transB")) return {{a.dtype, {groups, columns, inner}}};
  return {{a.dtype, {groups, inner, columns}}};
}

void grad_grouped_matmul(GradContext& c) {
  const bool transposed = c.attrs().b("transB");
  if (c.wants(1)) c.set(1, c.b().op(Op::kGroupedMatMulGrad, {c.in(0), c.dy(), c.in(2)}, {{"transB", transposed}}));
  if (c.wants(0)) c.set(0, c.b().op(Op::kGroupedMatMul, {c.dy(), c.in(1), c.in(2)}, {{"transB", !transposed}}));
}

}  // namespace lowtide
