// The gradients of attention, and the table of both directions. See attention_blocks.h.
#pragma once

#include "kernels/cpu/attention/attention_blocks.h"

namespace lowtide::cpu::LT_ISA {

// Scores of one query become weights, and gradients of the dropped weights those of the weights.
static inline void weigh_again(float* scores, float* grads, int64_t n, float lse, const float* factors) {
  const vf minus_lse = splat(lse == -kInfinity ? -kInfinity : -lse);
  for_vectors(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    store(scores + i, exp_flushed(load(scores + i, count) + minus_lse), count);
    if (factors != nullptr) store(grads + i, load(grads + i, count) * load(factors + i, count), count);
  });
}

// The sum of exp(score - lse) over all keys that query `query` sees, for each block of keys anew: such rows are few.
template <class A>
float sum_again(const AttentionCall<typename A::Number>& call, int64_t batch, int64_t head, int64_t query, float lse) {
  constexpr float kAbsorbs = 1e15f;  // scores without a mask change no digit of what is larger
  const AttentionOptions& options = call.options;
  const auto* q = call.q.at(batch, head) + query * call.q.row_stride;
  const auto* k = call.k.at(batch, head / (options.query_heads / options.key_heads));
  float total = 0;
  for (int64_t key = 0; key < options.keys; key += kKeys) {
    const Block block = make_block(options, batch, head, query, 1, key);
    if (block.keys <= 0) break;
    float scores[kKeys];
    for (int64_t j = 0; j < block.keys; ++j) {
      if (__builtin_fabsf(lse) > kAbsorbs) {
        scores[j] = 0;
        continue;
      }
      const auto* row = k + (key + j) * call.k.row_stride;
      scores[j] = options.scale * row_sum(options.head_dim, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
                    return A::load(q + i, count) * A::load(row + i, count);
                  });
    }
    if (options.mask.data != nullptr) add_mask<A>(options, block, 0, scores, block.keys);
    total += row_sum(block.keys, [&](int64_t j, auto count) LT_INLINE_LAMBDA {
      return keep_lanes(exp_flushed(load(scores + j, count) - lse), count, 0);
    });
  }
  return total;
}

// The mean of `grads` under the weights. Summed from the very roundings that the gradients of the scores are made of,
// so that these sum to zero as they should: their sums are the gradient of the keys' bias.
LT_INLINE float weighted_mean(const float* weights, const float* grads, int64_t n) {
  const float total = row_sum(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA { return load(weights + i, count); });
  const float sum = row_sum(
      n, [&](int64_t i, auto count) LT_INLINE_LAMBDA { return load(weights + i, count) * load(grads + i, count); });
  return total == 0 ? 0 : sum / total;
}

// The gradients of one query's scores, weight (gradient - mean), onto those of the mask.
static inline void add_mask_grads(const MaskSums& sums, const Block& block, int64_t r, const float* weights,
                                  const float* grads, int64_t n, float mean) {
  float* to = sums.data + block.batch * sums.batch_stride + block.head * sums.head_stride +
              (block.first_query + r) * sums.query_stride + block.first_key * sums.key_stride;
  const auto grad = [&](int64_t j, auto count)
                        LT_INLINE_LAMBDA { return load(weights + j, count) * (load(grads + j, count) - mean); };
  if (sums.key_stride == 1) {
    for_vectors(
        n, [&](int64_t j, auto count) LT_INLINE_LAMBDA { store(to + j, load(to + j, count) + grad(j, count), count); });
  } else if (sums.key_stride == 0) {
    *to += row_sum(n, [&](int64_t j, auto count) LT_INLINE_LAMBDA { return keep_lanes(grad(j, count), count, 0); });
  } else {
    for (int64_t j = 0; j < n; ++j) to[j * sums.key_stride] += weights[j] * (grads[j] - mean);
  }
}

// Weights and their gradients become dropped weights and scale * gradients of the scores.
static inline void score_grads(float* weights, float* grads, int64_t n, int64_t padded, float mean, float scale,
                               const float* factors) {
  for_vectors(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    const vf p = load(weights + i, count);
    store(grads + i, p * (load(grads + i, count) - mean) * scale, count);
    if (factors != nullptr) store(weights + i, p * load(factors + i, count), count);
  });
  for (int64_t i = n; i < padded; ++i) weights[i] = grads[i] = 0;
}

static inline void zero_rows(float* to, int64_t row, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r) __builtin_memset(to + r * row, 0, sizeof(float) * cols);
}

// Of the queries of a group of heads, its keys and its values.
template <class A>
int64_t copied_floats(const AttentionOptions& options) {
  const int64_t group = options.query_heads / options.key_heads;
  const int64_t numbers =
      (group * options.queries + options.keys) * options.head_dim + options.keys * options.value_dim;
  return (numbers * (int64_t)sizeof(typename A::Number) + 3) / 4;
}

// Some heads of one batch entry, as they will be read once they are written over: their rows go to `to`.
template <class Number>
HeadsView<const Number> copy_of_heads(HeadsView<const Number> heads, int64_t batch, int64_t first_head, int64_t count,
                                      int64_t rows, int64_t dim, Number*& to) {
  HeadsView<const Number> copy;
  copy.row_stride = dim;
  copy.head_stride = rows * dim;
  copy.data = to - first_head * copy.head_stride;
  for (int64_t head = first_head; head < first_head + count; ++head) {
    const Number* from = heads.at(batch, head);
    for (int64_t row = 0; row < rows; ++row, to += dim)
      __builtin_memcpy(to, from + row * heads.row_stride, sizeof(Number) * dim);
  }
  return copy;
}

template <class A>
struct BackwardScratch {
  float *scores, *grads, *factors, *query_sums, *key_sums, *value_sums, *copies;
  typename A::Panels keys, values, key_rows, query_rows, out_rows;
  typename A::Room room;
  int64_t floats;
  BackwardScratch(const AttentionOptions& options, float* base) : BackwardScratch(options, Pieces{base}) {}

 private:
  BackwardScratch(const AttentionOptions& options, Pieces pieces)
      : scores(pieces.take(A::kQueries * kScoreRow)),
        grads(pieces.take(A::kQueries * kScoreRow)),
        factors(pieces.take(kKeys + 128)),
        query_sums(
            pieces.take(options.query_heads / options.key_heads * summed_floats<A>(options.queries, options.head_dim))),
        key_sums(pieces.take(summed_floats<A>(kKeys, options.head_dim))),
        value_sums(pieces.take(summed_floats<A>(kKeys, options.value_dim))),
        copies(pieces.take(options.may_overwrite ? copied_floats<A>(options) : 0)),
        keys(options.head_dim, kKeys, pieces),
        values(options.value_dim, kKeys, pieces),
        key_rows(kKeys, options.head_dim, pieces),
        query_rows(A::kQueries, options.head_dim, pieces),
        out_rows(A::kQueries, options.value_dim, pieces),
        room(options, pieces),
        floats(pieces.used) {}
};

// The gradients of one head's queries, and of one block of keys.
struct BlockSums {
  SummedRows queries, keys, values;
};

template <class A>
void backward_block(const AttentionCall<typename A::Number>& call, const Block& block, const BlockSums& sums,
                    BackwardScratch<A>& scratch) {
  const AttentionOptions& options = call.options;
  const int64_t dim = options.head_dim, value_dim = options.value_dim;
  const int64_t padded = round_up(block.keys, A::kCols);
  const auto* q = call.q.at(block.batch, block.head) + block.first_query * call.q.row_stride;
  const auto* o = call.o.at(block.batch, block.head) + block.first_query * call.o.row_stride;
  const auto* grad_o = call.grad_o.at(block.batch, block.head) + block.first_query * call.grad_o.row_stride;
  const float* lse = call.lse + (block.batch * options.query_heads + block.head) * options.queries + block.first_query;
  const bool masked = options.mask.data != nullptr;

  const auto queries = scratch.room.left(q, call.q.row_stride, block.queries, dim, options.scale);
  A::multiply(queries, scratch.keys, block.queries, dim, padded, scratch.scores, kScoreRow, false);
  const auto out_grads = scratch.room.left(grad_o, call.grad_o.row_stride, block.queries, value_dim, 1);
  A::multiply(out_grads, scratch.values, block.queries, value_dim, padded, scratch.grads, kScoreRow, false);
  for (int64_t r = 0; r < block.queries; ++r) {
    float *scores = scratch.scores + r * kScoreRow, *grads = scratch.grads + r * kScoreRow;
    const int64_t n = block.seen(options, r);
    if (!A::kScalesLeft) scale_row(scores, n, options.scale);
    if (masked) add_mask<A>(options, block, r, scores, n);
    const float* factors = nullptr;
    if (options.dropout > 0) factors = dropout_factors(call.dropout, block.element(options, r), n, scratch.factors);
    weigh_again(scores, grads, n, lse[r], factors);
    if (loses_sum(lse[r])) {
      const float total =
          options.keys <= kKeys
              ? row_sum(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA { return load(scores + i, count); })
              : sum_again<A>(call, block.batch, block.head, block.first_query + r, lse[r]);
      if (total > 0) scale_row(scores, n, 1 / total);
    }
    float mean;
    if (options.keys <= kKeys) {
      mean = weighted_mean(scores, grads, n);
    } else {  // the same sum over all blocks of keys
      const auto *out_row = o + r * call.o.row_stride, *grad_row = grad_o + r * call.grad_o.row_stride;
      mean = row_sum(value_dim, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
        return A::load(out_row + i, count) * A::load(grad_row + i, count);
      });
    }
    if (call.dmask.data != nullptr) add_mask_grads(call.dmask, block, r, scores, grads, n, mean);
    score_grads(scores, grads, n, padded, mean, options.scale, factors);
  }

  const auto score_grads_left = scratch.room.left_of_scores(scratch.grads, block.queries, block.keys);
  A::multiply(score_grads_left, scratch.key_rows, block.queries, block.keys, dim, sums.queries.at(block.first_query),
              sums.queries.stride, block.first_key > 0);
  scratch.room.pack_rows(q, call.q.row_stride, block.queries, dim, scratch.query_rows);
  A::multiply(scratch.room.transposed_left(scratch.grads, block.queries, block.keys), scratch.query_rows, block.keys,
              block.queries, dim, sums.keys.data, sums.keys.stride, true);
  scratch.room.pack_rows(grad_o, call.grad_o.row_stride, block.queries, value_dim, scratch.out_rows);
  A::multiply(scratch.room.transposed_left(scratch.scores, block.queries, block.keys), scratch.out_rows, block.keys,
              block.queries, value_dim, sums.values.data, sums.values.stride, true);
}

template <class A>
void backward(const AttentionCall<typename A::Number>& given, int64_t batch, int64_t key_head, float* base) {
  const AttentionOptions& options = given.options;
  BackwardScratch<A> scratch(options, base);
  const int64_t dim = options.head_dim, value_dim = options.value_dim;
  const int64_t group = options.query_heads / options.key_heads, first_head = key_head * group;
  AttentionCall<typename A::Number> call = given;
  auto* copies = (typename A::Number*)scratch.copies;
  if (call.dq.data == call.q.data)
    call.q = copy_of_heads(call.q, batch, first_head, group, options.queries, dim, copies);
  if (call.dk.data == call.k.data) call.k = copy_of_heads(call.k, batch, key_head, 1, options.keys, dim, copies);
  if (call.dv.data == call.v.data) call.v = copy_of_heads(call.v, batch, key_head, 1, options.keys, value_dim, copies);
  const auto *k = call.k.at(batch, key_head), *v = call.v.at(batch, key_head);
  const auto query_sums = [&](int64_t head) {
    return summed_in<A>(call.dq.at(batch, head), call.dq.row_stride,
                        scratch.query_sums + (head - first_head) * summed_floats<A>(options.queries, dim), dim);
  };
  if (options.keys == 0) {
    for (int64_t head = first_head; head < first_head + group; ++head) {
      const SummedRows sums = query_sums(head);
      zero_rows(sums.data, sums.stride, options.queries, dim);
    }
  }
  for (int64_t key = 0; key < options.keys; key += kKeys) {
    const int64_t keys = min_of(kKeys, options.keys - key);
    const auto *k_rows = k + key * call.k.row_stride, *v_rows = v + key * call.v.row_stride;
    scratch.room.pack_columns(k_rows, call.k.row_stride, dim, keys, scratch.keys);
    scratch.room.pack_columns(v_rows, call.v.row_stride, value_dim, keys, scratch.values);
    scratch.room.pack_rows(k_rows, call.k.row_stride, keys, dim, scratch.key_rows);
    auto* dk = call.dk.at(batch, key_head) + key * call.dk.row_stride;
    auto* dv = call.dv.at(batch, key_head) + key * call.dv.row_stride;
    const SummedRows key_sums = summed_in<A>(dk, call.dk.row_stride, scratch.key_sums, dim);
    const SummedRows value_sums = summed_in<A>(dv, call.dv.row_stride, scratch.value_sums, value_dim);
    zero_rows(key_sums.data, key_sums.stride, keys, dim);
    zero_rows(value_sums.data, value_sums.stride, keys, value_dim);
    for (int64_t head = first_head; head < first_head + group; ++head) {
      for (int64_t query = 0; query < options.queries; query += A::kQueries) {
        const int64_t queries = min_of(A::kQueries, options.queries - query);
        const Block block = make_block(options, batch, head, query, queries, key);
        if (block.keys > 0) backward_block<A>(call, block, {query_sums(head), key_sums, value_sums}, scratch);
      }
    }
    if (!A::kDirect) {
      hand_over<A>(key_sums, 0, keys, dim, 1, dk, call.dk.row_stride);
      hand_over<A>(value_sums, 0, keys, value_dim, 1, dv, call.dv.row_stride);
    }
  }
  for (int64_t head = first_head; !A::kDirect && head < first_head + group; ++head) {
    hand_over<A>(query_sums(head), 0, options.queries, dim, 1, call.dq.at(batch, head), call.dq.row_stride);
  }
}

template <class A>
int64_t forward_scratch(const AttentionOptions& options, int64_t queries) {
  return ForwardScratch<A>(options, queries, nullptr).floats;
}
template <class A>
int64_t backward_scratch(const AttentionOptions& options) {
  return BackwardScratch<A>(options, nullptr).floats;
}

template <class A>
constexpr AttentionTable<typename A::Number> attention_by = {forward<A>, backward<A>, forward_scratch<A>,
                                                             backward_scratch<A>};

}  // namespace lowtide::cpu::LT_ISA
