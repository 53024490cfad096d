// Attention by blocks of queries and keys, for files *_isa.cpp only. `A` is the arithmetic of the matrix products:
//   Number        what the operands are stored as; load(p, count) reads them as floats
//   kQueries      of a block; kCols: what the keys of a block are rounded up to
//   kDirect       results are added up where the caller wants them; else in scratch, and written by store(p, x, count)
//   kScalesLeft   the scale is applied to the queries; else to the scores
//   Room(options, pieces): scratch of its own, with which it packs the right operands and reads the left ones
#pragma once

#include "kernels/cpu/attention/attention_table.h"
#include "kernels/cpu/half_vectors.h"
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
    return options.first_element + row * options.keys + first_key;
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

// f(j, count, x): x the numbers of a row, stored as S, from j on.
template <class S, class F>
LT_INLINE void for_added(const typename S::Number* row, int64_t step, int64_t n, F f) {
  if (step == 1) {
    for_vectors(n, [&](int64_t j, auto count) LT_INLINE_LAMBDA { f(j, count, S::load(row + j, count)); });
  } else if (step == 0) {
    const vf x = splat(S::load(row, 1)[0]);
    for_vectors(n, [&](int64_t j, auto count) LT_INLINE_LAMBDA { f(j, count, x); });
  } else {
    for (int64_t j = 0; j < n; ++j) f(j, 1, S::load(row + j * step, 1));
  }
}

// Adds the mask and the bias, stored as S.
template <class S>
void add_numbers(const AttentionOptions& options, const Block& block, int64_t r, float* scores, int64_t n) {
  using Number = typename S::Number;
  const AttentionMask& mask = options.mask;
  const ScoreView& bias = options.bias;
  const Number* added = row_of<Number>(mask, block, r);
  if (bias.data == nullptr) {
    for_added<S>(added, mask.key_stride, n, [&](int64_t j, auto count, vf x) LT_INLINE_LAMBDA {
      store(scores + j, load(scores + j, count) + x, count);
    });
    return;
  }
  for_added<S>(added, mask.key_stride, n, [&](int64_t j, auto count, vf x) LT_INLINE_LAMBDA {
    const Number* from = row_of<Number>(bias, block, r) + j * bias.key_stride;
    vf y = splat(S::load(from, 1)[0]);
    if (bias.key_stride == 1) {
      y = S::load(from, count);
    } else if (bias.key_stride != 0) {
      for (int i = 1; i < count; ++i) y[i] = S::load(from + i * bias.key_stride, 1)[0];
    }
    store(scores + j, load(scores + j, count) + S::rounded(x + y), count);
  });
}

template <class A>
void add_mask(const AttentionOptions& options, const Block& block, int64_t r, float* scores, int64_t n) {
  const AttentionMask& mask = options.mask;
  if (!mask.hides)
    return mask.floats ? add_numbers<Floats>(options, block, r, scores, n)
                       : add_numbers<A>(options, block, r, scores, n);
  const int64_t step = mask.key_stride;
  const auto* visible = row_of<uint8_t>(mask, block, r);
  if (step == 1) {
    for (int64_t j = 0; j < n; ++j) scores[j] = visible[j] ? scores[j] : -kInfinity;
  } else {
    for (int64_t j = 0; j < n; ++j) scores[j] = visible[j * step] ? scores[j] : -kInfinity;
  }
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

}  // namespace lowtide::cpu::LT_ISA
