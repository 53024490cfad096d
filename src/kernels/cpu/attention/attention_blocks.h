// Attention by blocks of queries and keys, for files *_isa.cpp only. `A` is the arithmetic of the matrix products:
//   Number        what the operands are stored as; load(p, count) reads them as floats
//   kQueries      of a block; kCols: what the keys of a block are rounded up to
//   kDirect       results are added up where the caller wants them; else in scratch, and written by store(p, x, count)
//   kScalesLeft   the scale is applied to the queries; else to the scores
//   Room(options, pieces): scratch of its own, with which it packs the right operands and reads the left ones
#pragma once

#include "kernels/cpu/attention/attention_table.h"
#include "kernels/cpu/random/philox_vector.h"
#include "kernels/cpu/vector_math.h"

namespace lowtide::cpu::LT_ISA {

constexpr int64_t kKeys = kAttentionKeys;
constexpr int64_t kScoreRow = kKeys + 16;  // odd in cache lines: rows of a tile fall into different sets

// Cuts scratch into 64-byte aligned pieces; counts when there is no scratch yet.
struct Pieces {
  float* base;
  int64_t used = 0;
  float* take(int64_t floats) {
    float* piece = base == nullptr ? nullptr : base + used;
    used += round_up(floats, 16);
    return piece;
  }
};

// One block of queries against one block of keys.
struct Block {
  int64_t batch, head;
  int64_t first_query, queries;
  int64_t first_key, keys;  // keys that some query of the block sees

  int64_t seen(const AttentionOptions& options, int64_t r) const {  // keys that query r of the block sees
    return options.causal ? max_of(0, min_of(keys, first_query + r - first_key + 1)) : keys;
  }
  uint64_t element(const AttentionOptions& options, int64_t r) const {
    const uint64_t row = (batch * options.query_heads + head) * options.queries + first_query + r;
    return row * options.keys + first_key;
  }
};

LT_INLINE Block make_block(const AttentionOptions& options, int64_t batch, int64_t head, int64_t first_query,
                           int64_t queries, int64_t first_key) {
  int64_t keys = min_of(kKeys, options.keys - first_key);
  if (options.causal) keys = min_of(keys, first_query + queries - first_key);
  return {batch, head, first_query, queries, first_key, keys};
}

// Where the row of query r begins.
template <class T>
LT_INLINE const T* row_of(const ScoreView& view, const Block& block, int64_t r) {
  return (const T*)view.data + block.batch * view.batch_stride + block.head * view.head_stride +
         (block.first_query + r) * view.query_stride + block.first_key * view.key_stride;
}

// f(j, count, x): x the numbers of a row from j on.
template <class A, class F>
LT_INLINE void for_added(const typename A::Number* row, int64_t step, int64_t n, F f) {
  if (step == 1) {
    for_vectors(n, [&](int64_t j, auto count) LT_INLINE_LAMBDA { f(j, count, A::load(row + j, count)); });
  } else if (step == 0) {
    const vf x = splat(A::load(row, 1)[0]);
    for_vectors(n, [&](int64_t j, auto count) LT_INLINE_LAMBDA { f(j, count, x); });
  } else {
    for (int64_t j = 0; j < n; ++j) f(j, 1, A::load(row + j * step, 1));
  }
}

template <class A>
void add_mask(const AttentionOptions& options, const Block& block, int64_t r, float* scores, int64_t n) {
  using Number = typename A::Number;
  const AttentionMask& mask = options.mask;
  const ScoreView& bias = options.bias;
  const int64_t step = mask.key_stride;
  if (mask.hides) {
    const auto* visible = row_of<uint8_t>(mask, block, r);
    if (step == 1) {
      for (int64_t j = 0; j < n; ++j) scores[j] = visible[j] ? scores[j] : -kInfinity;
    } else {
      for (int64_t j = 0; j < n; ++j) scores[j] = visible[j * step] ? scores[j] : -kInfinity;
    }
    return;
  }
  const Number* added = row_of<Number>(mask, block, r);
  if (bias.data == nullptr) {
    for_added<A>(added, step, n, [&](int64_t j, auto count, vf x) LT_INLINE_LAMBDA {
      store(scores + j, load(scores + j, count) + x, count);
    });
    return;
  }
  for_added<A>(added, step, n, [&](int64_t j, auto count, vf x) LT_INLINE_LAMBDA {
    const Number* from = row_of<Number>(bias, block, r) + j * bias.key_stride;
    vf y = splat(A::load(from, 1)[0]);
    if (bias.key_stride == 1) {
      y = A::load(from, count);
    } else if (bias.key_stride != 0) {
      for (int i = 1; i < count; ++i) y[i] = A::load(from + i * bias.key_stride, 1)[0];
    }
    store(scores + j, load(scores + j, count) + A::rounded(x + y), count);
  });
}

static inline void copy_scaled(const float* from, int64_t row, int64_t rows, int64_t cols, float scale, float* to,
                               int64_t to_row) {
  for (int64_t r = 0; r < rows; ++r) {
    for_vectors(cols, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
      store(to + r * to_row + i, load(from + r * row + i, count) * scale, count);
    });
  }
}

LT_INLINE float largest(const float* x, int64_t n) {
  vf top = splat(-kInfinity);
  for_vectors(n, [&](int64_t i, auto count)
                     LT_INLINE_LAMBDA { top = vmax(keep_lanes(load(x + i, count), count, -kInfinity), top); });
  return lane_max(top);
}

struct Running {
  float top;    // largest score so far
  float total;  // sum of exp(score - top)
};

// Turns the scores of one query into weights exp(score - top), rescaling what was summed before to the new top.
static inline void weigh(float* scores, int64_t n, int64_t padded, Running& running, float* out, int64_t dim,
                         bool first) {
  const float top = n == 0 ? -kInfinity : largest(scores, n);
  const float new_top = top > running.top ? top : running.top;
  if (new_top == -kInfinity) {
    __builtin_memset(scores, 0, sizeof(float) * padded);
    return;
  }
  const float sum = row_sum(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    const vf e = keep_lanes(exp_flushed(load(scores + i, count) - new_top), count, 0);
    store(scores + i, e, count);
    return e;
  });
  for (int64_t i = n; i < padded; ++i) scores[i] = 0;
  if (new_top != running.top) {
    const float shrink = exp_flushed(splat(running.top - new_top))[0];
    if (!first) copy_scaled(out, dim, 1, dim, shrink, out, dim);
    running.total *= shrink;
    running.top = new_top;
  }
  running.total += sum;
}

static inline void drop(const DropoutRule& rule, uint64_t element, float* weights, int64_t n, float* room) {
  const float* factors = dropout_factors(rule, element, n, room);
  for_vectors(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    store(weights + i, load(weights + i, count) * load(factors + i, count), count);
  });
}

LT_INLINE void scale_row(float* row, int64_t n, float scale) {
  for_vectors(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA { store(row + i, load(row + i, count) * scale, count); });
}

// Where results are added up, row by row.
struct SummedRows {
  float* data;
  int64_t stride;
  float* at(int64_t row) const { return data + row * stride; }
};

// `to` itself, or `scratch`.
template <class A>
SummedRows summed_in(typename A::Number* to, int64_t stride, float* scratch, int64_t cols) {
  if constexpr (A::kDirect) {
    return {to, stride};
  } else {
    return {scratch, round_up(cols, A::kCols)};
  }
}
template <class A>
int64_t summed_floats(int64_t rows, int64_t cols) {
  return A::kDirect ? 0 : round_up(rows, A::kRows) * round_up(cols, A::kCols);
}

// scale * what was added up, to where the caller wants it.
template <class A>
void hand_over(const SummedRows& sums, int64_t row, int64_t rows, int64_t cols, float scale, typename A::Number* to,
               int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = sums.at(row + r);
    for_vectors(cols, [&](int64_t i, auto count)
                          LT_INLINE_LAMBDA { A::store(to + r * stride + i, load(from + i, count) * scale, count); });
  }
}

template <class A>
struct ForwardScratch {
  float *scores, *factors, *sums;
  Running* running;
  typename A::Panels keys, values;
  typename A::Room room;
  int64_t floats;
  ForwardScratch(const AttentionOptions& options, int64_t queries, float* base)
      : ForwardScratch(options, queries, Pieces{base}) {}

 private:
  ForwardScratch(const AttentionOptions& options, int64_t queries, Pieces pieces)
      : scores(pieces.take(A::kQueries * kScoreRow)),
        factors(pieces.take(kKeys + 128)),
        sums(pieces.take(summed_floats<A>(queries, options.value_dim))),
        running((Running*)pieces.take(2 * queries)),
        keys(options.head_dim, kKeys, pieces),
        values(kKeys, options.value_dim, pieces),
        room(options, pieces),
        floats(pieces.used) {}
};

template <class A>
void forward(const AttentionCall<typename A::Number>& call, int64_t batch, int64_t head, int64_t first, int64_t last,
             float* base) {
  const AttentionOptions& options = call.options;
  ForwardScratch<A> scratch(options, last - first, base);
  const int64_t dim = options.head_dim, value_dim = options.value_dim;
  const int64_t key_head = head / (options.query_heads / options.key_heads);
  const auto *q = call.q.at(batch, head), *k = call.k.at(batch, key_head), *v = call.v.at(batch, key_head);
  auto* out = call.out.at(batch, head) + first * call.out.row_stride;
  const SummedRows sums = summed_in<A>(out, call.out.row_stride, scratch.sums, value_dim);
  const bool masked = options.mask.data != nullptr;
  for (int64_t i = 0; i < last - first; ++i) scratch.running[i] = {-kInfinity, 0};

  const int64_t keys_end = options.causal ? min_of(options.keys, last) : options.keys;
  for (int64_t key = 0; key < keys_end; key += kKeys) {
    const int64_t keys = min_of(kKeys, keys_end - key);
    scratch.room.pack_columns(k + key * call.k.row_stride, call.k.row_stride, dim, keys, scratch.keys);
    scratch.room.pack_rows(v + key * call.v.row_stride, call.v.row_stride, keys, value_dim, scratch.values);
    for (int64_t query = first; query < last; query += A::kQueries) {
      const Block block = make_block(options, batch, head, query, min_of(A::kQueries, last - query), key);
      if (block.keys <= 0) continue;
      const int64_t padded = round_up(block.keys, A::kCols);
      const auto queries =
          scratch.room.left(q + query * call.q.row_stride, call.q.row_stride, block.queries, dim, options.scale);
      A::multiply(queries, scratch.keys, block.queries, dim, padded, scratch.scores, kScoreRow, false);
      for (int64_t r = 0; r < block.queries; ++r) {
        float* scores = scratch.scores + r * kScoreRow;
        const int64_t n = block.seen(options, r);
        if (!A::kScalesLeft) scale_row(scores, n, options.scale);
        if (masked) add_mask<A>(options, block, r, scores, n);
        weigh(scores, n, padded, scratch.running[query - first + r], sums.at(query - first + r), value_dim, key == 0);
        if (options.dropout > 0) drop(call.dropout, block.element(options, r), scores, n, scratch.factors);
      }
      const auto weights = scratch.room.left_of_scores(scratch.scores, block.queries, block.keys);
      A::multiply(weights, scratch.values, block.queries, block.keys, value_dim, sums.at(query - first), sums.stride,
                  key > 0);
    }
  }

  float* lse = call.lse_out + (batch * options.query_heads + head) * options.queries;
  for (int64_t i = first; i < last; ++i) {
    const Running running = scratch.running[i - first];
    if (options.keys == 0) __builtin_memset(sums.at(i - first), 0, sizeof(float) * value_dim);
    hand_over<A>(sums, i - first, 1, value_dim, running.total == 0 ? 0.0f : 1.0f / running.total,
                 out + (i - first) * call.out.row_stride, 0);
    lse[i] = running.top + __builtin_logf(running.total);
  }
}

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

template <class A>
struct BackwardScratch {
  float *scores, *grads, *factors, *query_sums, *key_sums, *value_sums;
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
void backward(const AttentionCall<typename A::Number>& call, int64_t batch, int64_t key_head, float* base) {
  const AttentionOptions& options = call.options;
  BackwardScratch<A> scratch(options, base);
  const int64_t dim = options.head_dim, value_dim = options.value_dim;
  const int64_t group = options.query_heads / options.key_heads, first_head = key_head * group;
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
