// scaled_dot_product_attention → Attention over [B, H, S, E].
#include <algorithm>
#include <cmath>

#include "lower/targets.h"
#include "ops/rule.h"

namespace lowtide {

namespace {

// x with its batch dims as two: missing ones are 1, more than two are flattened.
ValueId as_4d(Builder& b, ValueId x) {
  Shape shape = b.shape(x);
  if (shape.size() < 4) {
    shape.insert(shape.begin(), 4 - shape.size(), Dim(1));
  } else if (shape.size() > 4) {
    Shape outer(shape.begin(), shape.end() - 3);
    shape.erase(shape.begin(), shape.end() - 3);
    shape.insert(shape.begin(), numel(outer));
  }
  return b.reshape(x, shape);
}

Shape outer_dims(const Shape& shape, size_t inner) {
  return Shape(shape.begin(), shape.end() - static_cast<int64_t>(inner));
}

// x with outer dims `outer` before its last `inner` dims.
ValueId with_outer(Builder& b, ValueId x, Shape outer, size_t inner) {
  const Shape& shape = b.shape(x);
  outer.insert(outer.end(), shape.end() - static_cast<int64_t>(inner), shape.end());
  return b.expand(x, outer);
}

// x with dims of size 1 before its own.
ValueId with_rank(Builder& b, ValueId x, int64_t rank) {
  Shape shape = b.shape(x);
  shape.insert(shape.begin(), static_cast<size_t>(rank) - shape.size(), Dim(1));
  return b.reshape(x, shape);
}

}  // namespace

bool lower_attention(Call& c) {
  Builder& b = c.b;
  const DType dtype = c.dtype();
  ValueId q = c.operand("query", dtype), k = c.operand("key", dtype), v = c.operand("value", dtype);
  ValueId mask = c.optional("attn_mask");
  if (std::min({b.rank(q), b.rank(k), b.rank(v)}) < 2) return false;
  // Batch dims that one operand lacks are broadcast like others; under enable_gqa PyTorch wants them all.
  const int64_t rank = std::max({b.rank(q), b.rank(k), b.rank(v)});
  for (ValueId* x : {&q, &k, &v}) *x = with_rank(b, *x, rank);
  const Dim width = b.shape(q).back();
  if (!c.has("scale") && !width.is_constant()) return false;
  const double scale = c.has("scale") ? c.real("scale") : 1 / std::sqrt(static_cast<double>(width.constant()));

  // Everything before heads broadcasts; the node wants it equal. Heads may differ only under enable_gqa.
  const size_t inner = b.rank(q) >= 3 && c.flag("enable_gqa") ? 3 : 2;
  Shape outer = broadcast(outer_dims(b.shape(q), inner), outer_dims(b.shape(k), inner));
  outer = broadcast(outer, outer_dims(b.shape(v), inner));
  q = with_outer(b, q, outer, inner);
  k = with_outer(b, k, outer, inner);
  v = with_outer(b, v, outer, inner);
  if (mask && b.dtype(mask) != DType::kBool) mask = b.cast(mask, dtype);
  if (mask && b.rank(q) > 4) {
    // Flattened batch dims leave no room for the mask's own broadcasting.
    Shape batch(b.shape(q).begin(), b.shape(q).end() - 3);
    Shape full = batch;
    const Shape& shape = b.shape(mask);
    for (size_t i = 3; i > 0; --i) full.push_back(i <= shape.size() ? shape[shape.size() - i] : Dim(1));
    mask = b.expand(mask, full);
  }
  if (mask) mask = as_4d(b, mask);

  const double dropout = c.real("dropout_p", 0);
  std::vector<ValueId> operands{as_4d(b, q), as_4d(b, k), as_4d(b, v)};
  if (mask) operands.push_back(mask);
  const ValueId y = b.op(Op::kAttention, operands,
                         {{"is_causal", c.flag("is_causal")},
                          {"scale", scale},
                          {"dropout", dropout},
                          {"stream", dropout > 0 ? c.fresh_stream() : Dim(0)}});
  return c.result(b.reshape(y, c.shape()));
}

}  // namespace lowtide
