// Scaled dot-product attention with grouped heads, masks, causality and dropout.
#include "ops/builder.h"
#include "ops/inference.h"
#include "ops/packed_heads.h"

namespace lowtide {

// Checks q, k, v from operand `first` on, the mask and the bias behind it; returns [B, H, S, Ev].
static TensorType attended(const InferArgs& args, size_t first, size_t mask) {
  const TensorType &q = args.in(first), &k = args.in(first + 1), &v = args.in(first + 2);
  check_float(args, first);
  for (size_t i = first; i < first + 3; ++i) {
    LT_INFER_CHECK(args, rank(args.in(i)) == 4, "q, k and v must have 4 dims, operand ", i, " is ",
                   to_string(args.in(i)));
    check_same_dtype(args, first, i);
  }
  auto agree = [&](const Dim& a, const Dim& b) { return dims_agree(a, b, args.ranges); };
  LT_INFER_CHECK(args, agree(q.shape[0], k.shape[0]) && agree(k.shape[0], v.shape[0]), "batch sizes differ: q is ",
                 to_string(q), ", k is ", to_string(k), ", v is ", to_string(v));
  LT_INFER_CHECK(args, agree(k.shape[1], v.shape[1]) && agree(k.shape[2], v.shape[2]),
                 "k and v differ in heads or length: ", to_string(k), " and ", to_string(v));
  LT_INFER_CHECK(args, agree(q.shape[3], k.shape[3]), "q and k differ in head size: ", to_string(q), " and ",
                 to_string(k));
  LT_INFER_CHECK(args,
                 !k.shape[1].is(0) && (!mod(q.shape[1], k.shape[1]).is_constant() || mod(q.shape[1], k.shape[1]).is(0)),
                 "the heads of k do not divide those of q: ", to_string(q), " and ", to_string(k));
  const Shape scores{q.shape[0], q.shape[1], q.shape[2], k.shape[2]};
  const auto check_added = [&](size_t operand, std::string_view called) {
    const TensorType& added = args.in(operand);
    LT_INFER_CHECK(args, broadcasts_to(added.shape, scores, args.ranges), "the ", called, " is ", to_string(added),
                   " and does not broadcast to ", to_string(scores));
  };
  if (args.has(mask)) {
    const TensorType& m = args.in(mask);
    LT_INFER_CHECK(args, m.dtype == DType::kBool || m.dtype == q.dtype || (is_half(q.dtype) && m.dtype == DType::kF32),
                   "the mask must be bool, ", name(q.dtype), " or, for 16 bits, f32, is ", to_string(m));
    check_added(mask, "mask");
  }
  if (args.has(mask + 1)) {
    LT_INFER_CHECK(args, args.has(mask) && is_float(args.in(mask).dtype), "a bias needs a mask of numbers");
    check_same_dtype(args, mask, mask + 1);
    check_added(mask + 1, "bias");
  }
  return {q.dtype, {q.shape[0], q.shape[1], q.shape[2], v.shape[3]}};
}

static Shape score_rows(const TensorType& q) { return {q.shape.begin(), q.shape.end() - 1}; }

// y = dropout(softmax(scale*q k^T + (mask + bias))) v
std::vector<TensorType> infer_attention(const InferArgs& args) {
  const TensorType y = attended(args, 0, 3);
  return {y, {statistics_dtype(y.dtype), score_rows(y)}};
}

std::vector<TensorType> infer_attention_grad(const InferArgs& args) {
  const TensorType y = attended(args, 1, 6);
  check_same_dtype(args, 0, 1);
  check_shape(args, 0, "dy", y.shape);
  check_shape(args, 4, "y", y.shape);
  check_shape(args, 5, "log_sum_exp", score_rows(y));
  const bool float_mask = args.has(6) && is_float(args.in(6).dtype);
  const TensorType dmask = float_mask ? args.in(6) : no_output();
  if (!args.attrs.has("packed")) return {args.in(1), args.in(2), args.in(3), dmask};
  const int64_t axis = args.attrs.i("packed");
  LT_INFER_CHECK(args, axis == 2 || axis == 3, "dq, dk and dv are packed along dim 2 or 3, not ", axis);
  const TensorType& q = args.in(1);
  for (size_t i = 2; i < 4; ++i)
    LT_INFER_CHECK(args, args.in(i).shape == q.shape, "dq, dk and dv are packed into one output, but q is ",
                   to_string(q), " and operand ", i, " is ", to_string(args.in(i)));
  return {{q.dtype, packed_heads(q.shape, axis)}, no_output(), no_output(), dmask};
}

constexpr size_t kMask = 3, kBias = 4;

// The scores are computed again from q, k and log_sum_exp; dropout draws its mask again.
void grad_attention(GradContext& c) {
  LT_USER_CHECK(ErrorKind::kUnsupported, !c.dy(1),
                with_origin("Attention: no gradient through log_sum_exp", c.node().origin));
  std::vector<ValueId> operands{c.dy(), c.in(0), c.in(1), c.in(2), c.out(0), c.out(1)};
  // What is added is a sum of two: its gradient is that of whichever wants one, which the node calls the mask.
  const bool of_bias = c.wants(kBias), of_mask = c.wants(kMask), of_both = of_bias && of_mask;
  if (of_both) {
    operands.push_back(c.b().add(c.in(kMask), c.in(kBias)));
  } else if (c.in(kMask)) {
    operands.push_back(c.in(of_bias ? kBias : kMask));
    if (c.in(kBias)) operands.push_back(c.in(of_bias ? kMask : kBias));
  }
  const NodeId grad = c.b().node(Op::kAttentionGrad, std::move(operands), c.attrs(),
                                 {c.wants(0), c.wants(1), c.wants(2), of_mask || of_bias});
  for (size_t i = 0; i < kMask; ++i)
    if (c.wants(i)) c.set(i, c.graph().node(grad).outputs[i]);
  for (size_t i : {kMask, kBias})
    if (c.wants(i)) set_reduced(c, i, c.graph().node(grad).outputs[kMask]);
}

}  // namespace lowtide
