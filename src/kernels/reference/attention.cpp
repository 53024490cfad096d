// Attention with all probabilities of one query at a time.
#include "kernels/philox.h"
#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"
#include "kernels/task_slots.h"

namespace lowtide::reference {

namespace {

// The terms with the operands of one call.
struct Heads : AttentionTerms {
  const TensorRef &q, &k, &v;
  const TensorRef *given_mask, *given_bias;
  uint64_t key;

  Heads(const KernelCall& call, const AttentionTerms& terms, size_t first, size_t mask_at)
      : AttentionTerms(terms),
        q(call.inputs[first]),
        k(call.inputs[first + 1]),
        v(call.inputs[first + 2]),
        given_mask(input(call, mask_at)),
        given_bias(input(call, mask_at + 1)),
        key(call.random_key) {}

  int64_t keys_of(int64_t i) const { return causal ? std::min(keys, i + 1) : keys; }

  // Scores of query i, -inf where it may not attend.
  void scores(int64_t b, int64_t h, int64_t i, double* out) const {
    const int64_t from_q = offset(q, b, h, i), kv = h / heads_per_kv;
    for (int64_t j = 0; j < keys_of(i); ++j) {
      const int64_t from_k = offset(k, b, kv, j);
      double dot = 0;
      for (int64_t e = 0; e < width; ++e) dot += get(q, from_q + e * q.strides[3]) * get(k, from_k + e * k.strides[3]);
      dot *= scale;
      if (given_mask) {
        const int64_t at = offset_in(mask, b, h, i, j);
        if (given_bias) {
          dot += rounded(given_mask->dtype, get(*given_mask, at) + get(*given_bias, offset_in(bias, b, h, i, j)));
        } else if (given_mask->dtype != DType::kBool) {
          dot += get(*given_mask, at);
        } else if (get_int(*given_mask, at) == 0) {
          dot = -kInfinity;
        }
      }
      out[j] = dot;
    }
  }

  static int64_t offset_in(const Strides& strides, int64_t b, int64_t h, int64_t i, int64_t j) {
    const int64_t* s = strides.at;
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

// The softmax of a query's scores. A query that may attend nothing gets zeros and log-sum-exp -inf, as in PyTorch.
struct Softmax {
  Softmax(const double* scores, int64_t n) {
    for (int64_t j = 0; j < n; ++j) largest = scores[j] > largest || scores[j] != scores[j] ? scores[j] : largest;
    for (int64_t j = 0; j < n; ++j) sum += weight(scores[j]);
  }
  double weight(double score) const { return score == -kInfinity ? 0.0 : std::exp(score - largest); }
  double probability(double score) const { return sum == 0 ? 0 : weight(score) / sum; }
  double log_sum_exp() const { return sum == 0 ? -kInfinity : largest + std::log(sum); }
  double largest = -kInfinity, sum = 0;
};

}  // namespace

static Strides over_scores(const BoundCall& call, const TensorRef& mask) {
  TensorRef scores;
  scores.rank = 4;
  return broadcast_strides(call, mask, scores);
}

AttentionTerms::AttentionTerms(const BoundCall& call, size_t q, size_t mask_at)
    : mask(over_scores(call, input_or_absent(call, mask_at))),
      bias(over_scores(call, input_or_absent(call, mask_at + 1))),
      causal(call.attrs->b("is_causal")),
      scale(call.attrs->f("scale")),
      dropped(call.attrs->f("dropout"), call.inputs[q].dtype, static_cast<uint64_t>(call.attrs->i("stream", 0))) {
  const int64_t *of_q = call.inputs[q].sizes, *of_k = call.inputs[q + 1].sizes;
  batches = of_q[0];
  heads = of_q[1];
  queries = of_q[2];
  width = of_q[3];
  kv_heads = of_k[1];
  keys = of_k[2];
  value_width = call.inputs[q + 2].sizes[3];
  heads_per_kv = kv_heads > 0 ? heads / kv_heads : 1;
}

constexpr int64_t kDoubleBytes = sizeof(double);

int64_t attention_scratch(const BoundCall& call) {
  return AttentionTerms(call).row_doubles() * kDoubleBytes * parallel_threads();
}

KernelStatus attention(const KernelCall& call, const AttentionTerms& terms) {
  const Heads s(call, terms, 0, 3);
  const TensorRef *y = output(call, 0), *log_sum_exp = output(call, 1);
  run_tasks<double>(s.batches * s.heads * s.queries, s.row_doubles(), call.scratch, call.scratch_bytes, false,
                    [&](int64_t position, double* scores) {
                      double* sums = scores + s.keys;
                      const int64_t i = position % s.queries, h = position / s.queries % s.heads,
                                    b = position / s.queries / s.heads;
                      const int64_t n = s.keys_of(i);
                      s.scores(b, h, i, scores);
                      const Softmax softmax(scores, n);
                      if (log_sum_exp) set(*log_sum_exp, Heads::offset(*log_sum_exp, b, h, i), softmax.log_sum_exp());
                      if (!y) return;
                      std::fill_n(sums, s.value_width, 0.0);
                      for (int64_t j = 0; j < n; ++j) {
                        const double p = softmax.probability(scores[j]) * s.kept(b, h, i, j);
                        const int64_t from = Heads::offset(s.v, b, h / s.heads_per_kv, j);
                        if (p == 0) continue;
                        for (int64_t e = 0; e < s.value_width; ++e) sums[e] += p * get(s.v, from + e * s.v.strides[3]);
                      }
                      store(*y, Heads::offset(*y, b, h, i), y->strides[3], s.value_width, sums);
                    });
  return nullptr;
}

AttentionGradTerms::AttentionGradTerms(const BoundCall& call) : AttentionTerms(call, 1, 6) {
  const TensorRef& wanted = output_or_absent(call, 3);
  dmask = positions(call, wanted);
  dmask_numel = wanted.present ? wanted.numel() : 0;
  TensorRef dense = wanted;
  for (int64_t i = dense.rank - 1, stride = 1; i >= 0; stride *= dense.sizes[i], --i) dense.strides[i] = stride;
  dmask_sums = over_scores(call, dense);
}

int64_t attention_grad_scratch(const BoundCall& call) {
  const AttentionGradTerms terms(call);
  return (terms.dmask_numel + terms.task_doubles() * parallel_threads()) * kDoubleBytes;
}

// With P the probabilities, m the dropout factors: dP = (dy V^T) m, dS = P (dP - dy.y);
// dq = scale dS K, dk = scale dS^T q, dv = (P m)^T dy, dmask = dS summed over what the mask repeats.
KernelStatus attention_grad(const KernelCall& call, const AttentionGradTerms& terms) {
  const TensorRef &dy = call.inputs[0], &y = call.inputs[4];
  const Heads s(call, terms, 1, 6);
  const TensorRef *dq = output(call, 0), *dk = output(call, 1), *dv = output(call, 2), *dmask = output(call, 3);
  double* mask_sum = static_cast<double*>(call.scratch);
  std::fill_n(mask_sum, terms.dmask_numel, 0.0);
  // The mask's gradient sums over batches and heads: one thread then.
  run_tasks<double>(
      s.batches * s.kv_heads, terms.task_doubles(), mask_sum + terms.dmask_numel,
      call.scratch_bytes - terms.dmask_numel * kDoubleBytes, dmask != nullptr, [&](int64_t task, double* scores) {
        double *dq_row = scores + s.keys, *dk_sum = dq_row + s.width, *dv_sum = dk_sum + s.keys * s.width;
        const int64_t b = task / s.kv_heads, kv = task % s.kv_heads;
        std::fill_n(dk_sum, s.keys * (s.width + s.value_width), 0.0);
        for (int64_t h = kv * s.heads_per_kv; h < (kv + 1) * s.heads_per_kv; ++h) {
          for (int64_t i = 0; i < s.queries; ++i) {
            const int64_t n = s.keys_of(i), from_dy = Heads::offset(dy, b, h, i), from_y = Heads::offset(y, b, h, i),
                          from_q = Heads::offset(s.q, b, h, i);
            s.scores(b, h, i, scores);
            const Softmax softmax(scores, n);
            double delta = 0;
            for (int64_t e = 0; e < s.value_width; ++e)
              delta += get(dy, from_dy + e * dy.strides[3]) * get(y, from_y + e * y.strides[3]);
            std::fill_n(dq_row, s.width, 0.0);
            for (int64_t j = 0; j < n; ++j) {
              const double p = softmax.probability(scores[j]), kept = s.kept(b, h, i, j);
              const int64_t from_v = Heads::offset(s.v, b, kv, j), from_k = Heads::offset(s.k, b, kv, j);
              double dp = 0;
              for (int64_t e = 0; e < s.value_width; ++e) {
                const double g = get(dy, from_dy + e * dy.strides[3]);
                dp += g * get(s.v, from_v + e * s.v.strides[3]);
                dv_sum[j * s.value_width + e] += p * kept * g;
              }
              const double ds = p == 0 ? 0 : p * (dp * kept - delta);
              if (dmask) mask_sum[Heads::offset_in(terms.dmask_sums, b, h, i, j)] += ds;
              for (int64_t e = 0; e < s.width; ++e) {
                dq_row[e] += s.scale * ds * get(s.k, from_k + e * s.k.strides[3]);
                dk_sum[j * s.width + e] += s.scale * ds * get(s.q, from_q + e * s.q.strides[3]);
              }
            }
            if (dq) store(*dq, Heads::offset(*dq, b, h, i), dq->strides[3], s.width, dq_row);
          }
        }
        for (int64_t j = 0; j < s.keys; ++j) {
          if (dk) store(*dk, Heads::offset(*dk, b, kv, j), dk->strides[3], s.width, dk_sum + j * s.width);
          if (dv) store(*dv, Heads::offset(*dv, b, kv, j), dv->strides[3], s.value_width, dv_sum + j * s.value_width);
        }
      });
  if (dmask) terms.dmask.for_each([&](int64_t position, const auto& at) { set(*dmask, at[0], mask_sum[position]); });
  return nullptr;
}

// y = x*cos + rotate(x)*sin with rotate(x) = (-x2, x1) for each pair (x1, x2); transposed: (g2, -g1) with g = dy*sin.
KernelStatus rotary_embedding(const KernelCall& call, const Rotation& rotation) {
  const TensorRef &x = call.inputs[0], &cos = call.inputs[1], &sin = call.inputs[2], &y = call.outputs[0];
  const int64_t half = rotation.size / 2;
  const auto& steps = rotation.steps;
  rotation.for_each(64, [&](const auto& at) {
    auto x_at = [&](int64_t e) { return get(x, at[0] + e * steps[0]); };
    auto cos_at = [&](int64_t e) { return get(cos, at[1] + e * steps[1]); };
    auto sin_at = [&](int64_t e) { return get(sin, at[2] + e * steps[2]); };
    // Both numbers of a pair are read before either is written: y may be x.
    for (int64_t pair = 0; pair < half; ++pair) {
      const int64_t e = rotation.interleaved ? 2 * pair : pair, f = rotation.interleaved ? e + 1 : e + half;
      const double x1 = x_at(e), x2 = x_at(f);
      const double r1 = rotation.transposed ? x2 * sin_at(f) : -x2 * sin_at(e);
      const double r2 = rotation.transposed ? -x1 * sin_at(e) : x1 * sin_at(f);
      const double y1 = x1 * cos_at(e) + r1, y2 = x2 * cos_at(f) + r2;
      set(y, at[3] + e * steps[3], y1);
      set(y, at[3] + f * steps[3], y2);
    }
  });
  return nullptr;
}

}  // namespace lowtide::reference
