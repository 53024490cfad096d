#include "kernels/cpu/attention/attention_table.h"
#include "kernels/cpu/micro_kernel.h"
#include "kernels/cpu/random/philox_vector.h"
#include "kernels/cpu/vector_math.h"

namespace lowtide::cpu::LT_ISA {
namespace {

constexpr int64_t kQueries = LT_LANES == 16 ? 56 : 48;  // of a block: whole tiles
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

int64_t query_row(const AttentionOptions& options) { return round_up(options.head_dim, 16) + 16; }
int64_t panels_of(int64_t cols, int64_t depth) { return round_up(cols, kTileCols) * depth; }

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

Block make_block(const AttentionOptions& options, int64_t batch, int64_t head, int64_t first_query, int64_t last_query,
                 int64_t first_key) {
  const int64_t queries = min_of(kQueries, last_query - first_query);
  int64_t keys = min_of(kKeys, options.keys - first_key);
  if (options.causal) keys = min_of(keys, first_query + queries - first_key);
  return {batch, head, first_query, queries, first_key, keys};
}

void add_mask(const AttentionMask& mask, const Block& block, int64_t r, float* scores, int64_t n) {
  const int64_t at = block.batch * mask.batch_stride + block.head * mask.head_stride +
                     (block.first_query + r) * mask.query_stride + block.first_key * mask.key_stride;
  const int64_t step = mask.key_stride;
  if (mask.added != nullptr) {
    const float* added = mask.added + at;
    if (step == 1) {
      for (int64_t j = 0; j < n; ++j) scores[j] += added[j];
    } else {
      for (int64_t j = 0; j < n; ++j) scores[j] += added[j * step];
    }
  }
  if (mask.visible != nullptr) {
    const uint8_t* visible = mask.visible + at;
    if (step == 1) {
      for (int64_t j = 0; j < n; ++j) scores[j] = visible[j] ? scores[j] : -kInfinity;
    } else {
      for (int64_t j = 0; j < n; ++j) scores[j] = visible[j * step] ? scores[j] : -kInfinity;
    }
  }
}

void copy_scaled(const float* from, int64_t row, int64_t rows, int64_t cols, float scale, float* to, int64_t to_row) {
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
void weigh(float* scores, int64_t n, int64_t padded, Running& running, float* out, int64_t dim, bool first) {
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

void drop(const DropoutRule& rule, uint64_t element, float* weights, int64_t n, float* room) {
  const float* factors = dropout_factors(rule, element, n, room);
  for_vectors(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    store(weights + i, load(weights + i, count) * load(factors + i, count), count);
  });
}

struct ForwardScratch {
  float *query, *scores, *key_panels, *value_panels, *factors;
  Running* running;
  int64_t floats;
  ForwardScratch(const AttentionOptions& options, int64_t queries, float* base) {
    Pieces pieces{base};
    query = pieces.take(kQueries * query_row(options));
    scores = pieces.take(kQueries * kScoreRow);
    key_panels = pieces.take(panels_of(kKeys, options.head_dim));
    value_panels = pieces.take(panels_of(options.value_dim, kKeys));
    factors = pieces.take(kKeys + 128);
    running = (Running*)pieces.take(2 * queries);
    floats = pieces.used;
  }
};

void forward(const AttentionCall& call, int64_t batch, int64_t head, int64_t first, int64_t last, float* base) {
  const AttentionOptions& options = call.options;
  const ForwardScratch scratch(options, last - first, base);
  const int64_t dim = options.head_dim, value_dim = options.value_dim, query_stride = query_row(options);
  const int64_t key_head = head / (options.query_heads / options.key_heads);
  const float *q = call.q.at(batch, head), *k = call.k.at(batch, key_head), *v = call.v.at(batch, key_head);
  float* out = call.out.at(batch, head);
  const bool masked = options.mask.added != nullptr || options.mask.visible != nullptr;
  for (int64_t i = 0; i < last - first; ++i) scratch.running[i] = {-kInfinity, 0};

  const int64_t keys_end = options.causal ? min_of(options.keys, last) : options.keys;
  for (int64_t key = 0; key < keys_end; key += kKeys) {
    const int64_t keys = min_of(kKeys, keys_end - key);
    pack_transposed(k + key * call.k.row_stride, call.k.row_stride, dim, keys, scratch.key_panels, dim * kTileCols);
    pack(v + key * call.v.row_stride, call.v.row_stride, keys, value_dim, scratch.value_panels, kKeys * kTileCols);
    for (int64_t query = first; query < last; query += kQueries) {
      const Block block = make_block(options, batch, head, query, last, key);
      if (block.keys <= 0) continue;
      const int64_t padded = round_up(block.keys, kTileCols);
      copy_scaled(q + query * call.q.row_stride, call.q.row_stride, block.queries, dim, options.scale, scratch.query,
                  query_stride);
      multiply(block.queries, padded, dim, scratch.query, query_stride, 1, scratch.key_panels, dim * kTileCols,
               scratch.scores, kScoreRow, false);
      for (int64_t r = 0; r < block.queries; ++r) {
        float* scores = scratch.scores + r * kScoreRow;
        const int64_t n = block.seen(options, r);
        if (masked) add_mask(options.mask, block, r, scores, n);
        weigh(scores, n, padded, scratch.running[query - first + r], out + (query + r) * call.out.row_stride, value_dim,
              key == 0);
        if (options.dropout > 0) drop(call.dropout, block.element(options, r), scores, n, scratch.factors);
      }
      multiply(block.queries, value_dim, block.keys, scratch.scores, kScoreRow, 1, scratch.value_panels,
               kKeys * kTileCols, out + query * call.out.row_stride, call.out.row_stride, key > 0);
    }
  }

  float* lse = call.lse_out + (batch * options.query_heads + head) * options.queries;
  for (int64_t i = first; i < last; ++i) {
    const Running running = scratch.running[i - first];
    float* row = out + i * call.out.row_stride;
    if (options.keys == 0) __builtin_memset(row, 0, sizeof(float) * value_dim);
    copy_scaled(row, 0, 1, value_dim, running.total == 0 ? 0.0f : 1.0f / running.total, row, 0);
    lse[i] = running.top + __builtin_logf(running.total);
  }
}

struct BackwardScratch {
  float *query, *grad_out, *scores, *grads, *key_panels, *value_panels, *key_rows, *query_rows, *out_rows, *factors;
  int64_t floats;
  BackwardScratch(const AttentionOptions& options, float* base) {
    Pieces pieces{base};
    query = pieces.take(kQueries * query_row(options));
    scores = pieces.take(kQueries * kScoreRow);
    grad_out = pieces.take(kQueries * (round_up(options.value_dim, 16) + 16));
    grads = pieces.take(kQueries * kScoreRow);
    key_panels = pieces.take(panels_of(kKeys, options.head_dim));
    value_panels = pieces.take(panels_of(kKeys, options.value_dim));
    key_rows = pieces.take(panels_of(options.head_dim, kKeys));
    query_rows = pieces.take(panels_of(options.head_dim, kQueries));
    out_rows = pieces.take(panels_of(options.value_dim, kQueries));
    factors = pieces.take(kKeys + 128);
    floats = pieces.used;
  }
};

// Scores of one query become weights, and gradients of the dropped weights those of the weights.
void weigh_again(float* scores, float* grads, int64_t n, float lse, const float* factors) {
  const vf minus_lse = splat(lse == -kInfinity ? -kInfinity : -lse);
  for_vectors(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    store(scores + i, exp_flushed(load(scores + i, count) + minus_lse), count);
    if (factors != nullptr) store(grads + i, load(grads + i, count) * load(factors + i, count), count);
  });
}

// The mean of `grads` under the weights. Summed from the very roundings that the gradients of the scores are made of,
// so that these sum to zero as they should: their sums are the gradient of the keys' bias.
LT_INLINE float weighted_mean(const float* weights, const float* grads, int64_t n) {
  const float total = row_sum(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA { return load(weights + i, count); });
  const float sum = row_sum(
      n, [&](int64_t i, auto count) LT_INLINE_LAMBDA { return load(weights + i, count) * load(grads + i, count); });
  return total == 0 ? 0 : sum / total;
}

// Weights and their gradients become dropped weights and scale * gradients of the scores.
void score_grads(float* weights, float* grads, int64_t n, int64_t padded, float mean, float scale,
                 const float* factors) {
  for_vectors(n, [&](int64_t i, auto count) LT_INLINE_LAMBDA {
    const vf p = load(weights + i, count);
    store(grads + i, p * (load(grads + i, count) - mean) * scale, count);
    if (factors != nullptr) store(weights + i, p * load(factors + i, count), count);
  });
  for (int64_t i = n; i < padded; ++i) weights[i] = grads[i] = 0;
}

void zero_rows(float* to, int64_t row, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r) __builtin_memset(to + r * row, 0, sizeof(float) * cols);
}

void backward_block(const AttentionCall& call, const Block& block, int64_t key_head, const BackwardScratch& scratch) {
  const AttentionOptions& options = call.options;
  const int64_t dim = options.head_dim, value_dim = options.value_dim, query_stride = query_row(options);
  const int64_t padded = round_up(block.keys, kTileCols);
  const float* q = call.q.at(block.batch, block.head) + block.first_query * call.q.row_stride;
  const float* o = call.o.at(block.batch, block.head) + block.first_query * call.o.row_stride;
  const float* grad_o = call.grad_o.at(block.batch, block.head) + block.first_query * call.grad_o.row_stride;
  const float* lse = call.lse + (block.batch * options.query_heads + block.head) * options.queries + block.first_query;
  const bool masked = options.mask.added != nullptr || options.mask.visible != nullptr;

  copy_scaled(q, call.q.row_stride, block.queries, dim, options.scale, scratch.query, query_stride);
  multiply(block.queries, padded, dim, scratch.query, query_stride, 1, scratch.key_panels, dim * kTileCols,
           scratch.scores, kScoreRow, false);
  const int64_t grad_stride = round_up(value_dim, 16) + 16;
  copy_scaled(grad_o, call.grad_o.row_stride, block.queries, value_dim, 1, scratch.grad_out, grad_stride);
  multiply(block.queries, padded, value_dim, scratch.grad_out, grad_stride, 1, scratch.value_panels,
           value_dim * kTileCols, scratch.grads, kScoreRow, false);
  for (int64_t r = 0; r < block.queries; ++r) {
    float *scores = scratch.scores + r * kScoreRow, *grads = scratch.grads + r * kScoreRow;
    const int64_t n = block.seen(options, r);
    if (masked) add_mask(options.mask, block, r, scores, n);
    const float* factors = nullptr;
    if (options.dropout > 0) factors = dropout_factors(call.dropout, block.element(options, r), n, scratch.factors);
    weigh_again(scores, grads, n, lse[r], factors);
    float mean;
    if (options.keys <= kKeys) {
      mean = weighted_mean(scores, grads, n);
    } else {  // the same sum over all blocks of keys
      const float *out_row = o + r * call.o.row_stride, *grad_row = grad_o + r * call.grad_o.row_stride;
      mean = row_sum(value_dim, [&](int64_t i, auto count)
                                    LT_INLINE_LAMBDA { return load(out_row + i, count) * load(grad_row + i, count); });
    }
    score_grads(scores, grads, n, padded, mean, options.scale, factors);
  }

  float* dq = call.dq.at(block.batch, block.head) + block.first_query * call.dq.row_stride;
  float* dk = call.dk.at(block.batch, key_head) + block.first_key * call.dk.row_stride;
  float* dv = call.dv.at(block.batch, key_head) + block.first_key * call.dv.row_stride;
  multiply(block.queries, dim, block.keys, scratch.grads, kScoreRow, 1, scratch.key_rows, kKeys * kTileCols, dq,
           call.dq.row_stride, block.first_key > 0);
  pack(q, call.q.row_stride, block.queries, dim, scratch.query_rows, kQueries * kTileCols);
  multiply(block.keys, dim, block.queries, scratch.grads, 1, kScoreRow, scratch.query_rows, kQueries * kTileCols, dk,
           call.dk.row_stride, true);
  pack(grad_o, call.grad_o.row_stride, block.queries, value_dim, scratch.out_rows, kQueries * kTileCols);
  multiply(block.keys, value_dim, block.queries, scratch.scores, 1, kScoreRow, scratch.out_rows, kQueries * kTileCols,
           dv, call.dv.row_stride, true);
}

void backward(const AttentionCall& call, int64_t batch, int64_t key_head, float* base) {
  const AttentionOptions& options = call.options;
  const BackwardScratch scratch(options, base);
  const int64_t dim = options.head_dim, value_dim = options.value_dim;
  const int64_t group = options.query_heads / options.key_heads;
  const float *k = call.k.at(batch, key_head), *v = call.v.at(batch, key_head);
  zero_rows(call.dk.at(batch, key_head), call.dk.row_stride, options.keys, dim);
  zero_rows(call.dv.at(batch, key_head), call.dv.row_stride, options.keys, value_dim);
  if (options.keys == 0) {
    for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
      zero_rows(call.dq.at(batch, head), call.dq.row_stride, options.queries, dim);
    }
  }
  for (int64_t key = 0; key < options.keys; key += kKeys) {
    const int64_t keys = min_of(kKeys, options.keys - key);
    const float *k_rows = k + key * call.k.row_stride, *v_rows = v + key * call.v.row_stride;
    pack_transposed(k_rows, call.k.row_stride, dim, keys, scratch.key_panels, dim * kTileCols);
    pack_transposed(v_rows, call.v.row_stride, value_dim, keys, scratch.value_panels, value_dim * kTileCols);
    pack(k_rows, call.k.row_stride, keys, dim, scratch.key_rows, kKeys * kTileCols);
    for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
      for (int64_t query = 0; query < options.queries; query += kQueries) {
        const Block block = make_block(options, batch, head, query, options.queries, key);
        if (block.keys > 0) backward_block(call, block, key_head, scratch);
      }
    }
  }
}

int64_t forward_scratch(const AttentionOptions& options, int64_t queries) {
  return ForwardScratch(options, queries, nullptr).floats;
}
int64_t backward_scratch(const AttentionOptions& options) { return BackwardScratch(options, nullptr).floats; }

}  // namespace

constinit const AttentionTable attention_table = {forward, backward, forward_scratch, backward_scratch};

}  // namespace lowtide::cpu::LT_ISA
