// Attention with all probabilities of one query at a time.
#include <vector>

#include "kernels/philox.h"
#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"
#include "kernels/walk.h"

namespace lowtide::reference {

namespace {

struct Shape {
  const TensorRef &q, &k, &v;
  const TensorRef* mask;
  Strides mask_strides;  // over [B, H, S, T]
  int64_t batches, heads, queries, keys, width, value_width, heads_per_kv;
  bool causal;
  double scale;
  Dropped dropped;
  uint64_t key;

  Shape(const KernelCall& call, const AttentionTerms& terms, const TensorRef& q_, const TensorRef& k_,
        const TensorRef& v_, const TensorRef* mask_)
      : q(q_),
        k(k_),
        v(v_),
        mask(mask_),
        causal(terms.causal),
        scale(terms.scale),
        dropped(terms.dropped),
        key(call.random_key) {
    batches = q.sizes[0];
    heads = q.sizes[1];
    queries = q.sizes[2];
    width = q.sizes[3];
    keys = k.sizes[2];
    value_width = v.sizes[3];
    heads_per_kv = k.sizes[1] > 0 ? heads / k.sizes[1] : 1;
    if (mask) {
      TensorRef scores;
      scores.rank = 4;
      mask_strides = broadcast_strides(*mask, scores);
    }
  }

  int64_t keys_of(int64_t i) const { return causal ? std::min(keys, i + 1) : keys; }

  // Scores of query i, -inf where it may not attend.
  void scores(int64_t b, int64_t h, int64_t i, double* out) const {
    const int64_t from_q = offset(q, b, h, i), kv = h / heads_per_kv;
    for (int64_t j = 0; j < keys_of(i); ++j) {
      const int64_t from_k = offset(k, b, kv, j);
      double dot = 0;
      for (int64_t e = 0; e < width; ++e) dot += get(q, from_q + e * q.strides[3]) * get(k, from_k + e * k.strides[3]);
      dot *= scale;
      if (mask) {
        const int64_t at = mask_offset(b, h, i, j);
        if (mask->dtype != DType::kBool) {
          dot += get(*mask, at);
        } else if (get_int(*mask, at) == 0) {
          dot = -kInfinity;
        }
      }
      out[j] = dot;
    }
  }

  int64_t mask_offset(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const int64_t* s = mask_strides.at;
    return b * s[0] + h * s[1] + i * s[2] + j * s[3];
  }

  // What dropout multiplies probability (b, h, i, j) by.
  double kept(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (dropped.threshold == 0) return 1;
    const int64_t index = ((b * heads + h) * queries + i) * keys + j;
    const bool keep = dropout_keep(key, dropped.stream, static_cast<uint64_t>(index), dropped.threshold);
    return keep ? dropped.scale : 0;
  }

  static int64_t offset(const TensorRef& tensor, int64_t b, int64_t h, int64_t i) {
    return b * tensor.strides[0] + h * tensor.strides[1] + i * tensor.strides[2];
  }
};

// A query that may attend nothing gets zeros and log-sum-exp -inf, as in PyTorch.
double probability(double score, double log_sum_exp) {
  return score == -kInfinity ? 0.0 : std::exp(score - log_sum_exp);
}

}  // namespace

AttentionTerms::AttentionTerms(const BoundCall& call, size_t q)
    : causal(call.attrs->b("is_causal")),
      scale(call.attrs->f("scale")),
      dropped(call.attrs->f("dropout"), call.inputs[q].dtype, static_cast<uint64_t>(call.attrs->i("stream", 0))) {}

KernelStatus attention(const KernelCall& call, const AttentionTerms& terms) {
  const Shape s(call, terms, call.inputs[0], call.inputs[1], call.inputs[2], input(call, 3));
  const TensorRef *y = output(call, 0), *log_sum_exp = output(call, 1);
  parallel_for(s.batches * s.heads * s.queries, 1, [&](int64_t begin, int64_t end) {
    static thread_local std::vector<double> row;
    row.resize(s.keys + s.value_width);
    double *scores = row.data(), *sums = scores + s.keys;
    for (int64_t position = begin; position < end; ++position) {
      const int64_t i = position % s.queries, h = position / s.queries % s.heads, b = position / s.queries / s.heads;
      const int64_t n = s.keys_of(i);
      s.scores(b, h, i, scores);
      double largest = -kInfinity, sum = 0;
      for (int64_t j = 0; j < n; ++j) largest = scores[j] > largest || scores[j] != scores[j] ? scores[j] : largest;
      for (int64_t j = 0; j < n; ++j) sum += probability(scores[j], largest);
      const double lse = largest + std::log(sum);
      if (log_sum_exp) set(*log_sum_exp, Shape::offset(*log_sum_exp, b, h, i), sum == 0 ? -kInfinity : lse);
      if (!y) continue;
      std::fill_n(sums, s.value_width, 0.0);
      for (int64_t j = 0; j < n; ++j) {
        const double p = probability(scores[j], lse) * s.kept(b, h, i, j);
        const int64_t from = Shape::offset(s.v, b, h / s.heads_per_kv, j);
        if (p == 0) continue;
        for (int64_t e = 0; e < s.value_width; ++e) sums[e] += p * get(s.v, from + e * s.v.strides[3]);
      }
      store(*y, Shape::offset(*y, b, h, i), y->strides[3], s.value_width, sums);
    }
  });
  return nullptr;
}

// With P the probabilities, m the dropout factors: dP = (dy V^T) m, dS = P (dP - dy.y);
// dq = scale dS K, dk = scale dS^T q, dv = (P m)^T dy, dmask = dS summed over what the mask repeats.
KernelStatus attention_grad(const KernelCall& call, const AttentionGradTerms& terms) {
  const TensorRef &dy = call.inputs[0], &y = call.inputs[4], &lse = call.inputs[5];
  const Shape s(call, terms, call.inputs[1], call.inputs[2], call.inputs[3], input(call, 6));
  const TensorRef *dq = output(call, 0), *dk = output(call, 1), *dv = output(call, 2), *dmask = output(call, 3);
  const int64_t kv_heads = s.k.sizes[1], mask_numel = dmask ? dmask->numel() : 0;
  Strides dmask_sums;  // of a row-major sum of the mask's shape, over [B, H, S, T]
  if (dmask) {
    TensorRef dense = *dmask, scores;
    scores.rank = 4;
    for (int64_t i = dense.rank - 1, stride = 1; i >= 0; stride *= dense.sizes[i], --i) dense.strides[i] = stride;
    dmask_sums = broadcast_strides(dense, scores);
  }
  // The mask's gradient sums over batches and heads: one thread then.
  const int64_t tasks = s.batches * kv_heads;
  parallel_for(tasks, dmask ? tasks : 1, [&](int64_t begin, int64_t end) {
    static thread_local std::vector<double> memory;
    memory.assign(2 * s.keys + s.width + s.keys * (s.width + s.value_width) + mask_numel, 0.0);
    double *scores = memory.data(), *slopes = scores + s.keys, *dq_row = slopes + s.keys, *dk_sum = dq_row + s.width,
           *dv_sum = dk_sum + s.keys * s.width, *mask_sum = dv_sum + s.keys * s.value_width;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t b = task / kv_heads, kv = task % kv_heads;
      std::fill(dk_sum, mask_sum, 0.0);
      for (int64_t h = kv * s.heads_per_kv; h < (kv + 1) * s.heads_per_kv; ++h) {
        for (int64_t i = 0; i < s.queries; ++i) {
          const int64_t n = s.keys_of(i), from_dy = Shape::offset(dy, b, h, i), from_y = Shape::offset(y, b, h, i),
                        from_q = Shape::offset(s.q, b, h, i);
          const double log_sum = get(lse, Shape::offset(lse, b, h, i));
          s.scores(b, h, i, scores);
          double delta = 0;
          for (int64_t e = 0; e < s.value_width; ++e)
            delta += get(dy, from_dy + e * dy.strides[3]) * get(y, from_y + e * y.strides[3]);
          std::fill_n(dq_row, s.width, 0.0);
          for (int64_t j = 0; j < n; ++j) {
            const double p = probability(scores[j], log_sum), kept = s.kept(b, h, i, j);
            const int64_t from_v = Shape::offset(s.v, b, kv, j), from_k = Shape::offset(s.k, b, kv, j);
            double dp = 0;
            for (int64_t e = 0; e < s.value_width; ++e) {
              const double g = get(dy, from_dy + e * dy.strides[3]);
              dp += g * get(s.v, from_v + e * s.v.strides[3]);
              dv_sum[j * s.value_width + e] += p * kept * g;
            }
            const double ds = p == 0 ? 0 : p * (dp * kept - delta);
            if (dmask) {
              const int64_t* m = dmask_sums.at;
              mask_sum[b * m[0] + h * m[1] + i * m[2] + j * m[3]] += ds;
            }
            for (int64_t e = 0; e < s.width; ++e) {
              dq_row[e] += s.scale * ds * get(s.k, from_k + e * s.k.strides[3]);
              dk_sum[j * s.width + e] += s.scale * ds * get(s.q, from_q + e * s.q.strides[3]);
            }
          }
          if (dq) store(*dq, Shape::offset(*dq, b, h, i), dq->strides[3], s.width, dq_row);
        }
      }
      for (int64_t j = 0; j < s.keys; ++j) {
        if (dk) store(*dk, Shape::offset(*dk, b, kv, j), dk->strides[3], s.width, dk_sum + j * s.width);
        if (dv) store(*dv, Shape::offset(*dv, b, kv, j), dv->strides[3], s.value_width, dv_sum + j * s.value_width);
      }
    }
    if (dmask) {
      grid_over<1>(*dmask, {strides_of(*dmask)}).for_each([&](int64_t position, const auto& at) {
        set(*dmask, at[0], mask_sum[position]);
      });
    }
  });
  return nullptr;
}

// y = x*cos + rotate(x)*sin with rotate(x) = (-x2, x1) for x = (x1, x2); transposed: (g2, -g1) with g = dy*sin.
KernelStatus rotary_embedding(const KernelCall& call, const Rotation& rotation) {
  const TensorRef &x = call.inputs[0], &cos = call.inputs[1], &sin = call.inputs[2], &y = call.outputs[0];
  const int last = x.rank - 1;
  const int64_t width = x.sizes[last], half = width / 2;
  const Strides cos_strides = broadcast_strides(cos, x), sin_strides = broadcast_strides(sin, x);
  const auto rows = rows_over<4>(x, last, {strides_of(x), cos_strides, sin_strides, strides_of(y)});
  parallel_for(rows.numel(), 64, [&](int64_t begin, int64_t end) {
    rows.for_each(begin, end, [&](int64_t, const auto& at) {
      auto x_at = [&](int64_t e) { return get(x, at[0] + e * x.strides[last]); };
      auto sin_at = [&](int64_t e) { return get(sin, at[2] + e * sin_strides.at[last]); };
      // Both halves are read before either is written: y may be x.
      for (int64_t e = 0; e < half; ++e) {
        const double x1 = x_at(e), x2 = x_at(e + half);
        const double c1 = get(cos, at[1] + e * cos_strides.at[last]);
        const double c2 = get(cos, at[1] + (e + half) * cos_strides.at[last]);
        const double r1 = rotation.transposed ? x2 * sin_at(e + half) : -x2 * sin_at(e);
        const double r2 = rotation.transposed ? -x1 * sin_at(e) : x1 * sin_at(e + half);
        set(y, at[3] + e * y.strides[last], x1 * c1 + r1);
        set(y, at[3] + (e + half) * y.strides[last], x2 * c2 + r2);
      }
    });
  });
  return nullptr;
}

}  // namespace lowtide::reference
