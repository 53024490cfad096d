// What attention_isa.cpp and bf16_attention_isa.cpp hand to attention.cpp: serial tasks that share nothing. Number is
// float, or uint16_t for operands stored as bf16 or f16.
#pragma once

#include "kernels/cpu/isa.h"
#include "kernels/cpu/random/random_table.h"

namespace lowtide::cpu {

// Whether a log-sum-exp may not tell the sum of a row's weights, which is then computed again: rows that a finite
// number hides from every key have scores in whose digits log(sum) is lost.
static inline bool loses_sum(double log_sum_exp) {
  constexpr double kLargest = 4096;
  return __builtin_fabs(log_sum_exp) > kLargest && !__builtin_isinf(log_sum_exp);
}

// [batch, heads, rows, dim] with any strides but the last, which is 1: [B, S, H, D] needs no copy.
template <class T>
struct HeadsView {
  T* data = nullptr;
  int64_t batch_stride = 0;
  int64_t head_stride = 0;
  int64_t row_stride = 0;
  T* at(int64_t batch, int64_t head) const { return data + batch * batch_stride + head * head_stride; }
};

// Numbers over [batch, heads, queries, keys]; stride 0 repeats. Null: none.
struct ScoreView {
  const void* data = nullptr;
  int64_t batch_stride = 0;
  int64_t head_stride = 0;
  int64_t query_stride = 0;
  int64_t key_stride = 0;
};

// Added to the scores, together with the bias if there is one, or where it is false the key is hidden (bool, one byte).
struct AttentionMask : ScoreView {
  bool hides = false;
  bool floats = false;  // of f32, as the bias is then; else Numbers
};

// Where the gradients of the added mask are summed, in floats; stride 0 where it repeats. Null: they are not wanted.
struct MaskSums {
  float* data = nullptr;
  int64_t batch_stride = 0;
  int64_t head_stride = 0;
  int64_t query_stride = 0;
  int64_t key_stride = 0;
};

struct AttentionOptions {
  int64_t batch = 0;
  int64_t query_heads = 0;
  int64_t key_heads = 0;  // divides query_heads; query head h reads key head h / (query_heads / key_heads)
  int64_t queries = 0;
  int64_t keys = 0;
  int64_t head_dim = 0;
  int64_t value_dim = 0;
  float scale = 1;
  bool causal = false;  // query i sees keys j <= i, also where lengths differ
  AttentionMask mask;
  ScoreView bias;  // rounded with the mask to what both are of before it is added
  // Dropout of the normalised probabilities by kernels/philox.h, element
  // first_element + ((b * query_heads + h) * queries + i) * keys + j.
  double dropout = 0;
  uint64_t first_element = 0;
  // Backward: the gradients of queries, keys and values may lie where these do.
  bool may_overwrite = false;
};

constexpr int64_t kAttentionKeys = 256;

template <class Number>
struct AttentionCall {
  AttentionOptions options;
  DropoutRule dropout;
  HeadsView<const Number> q, k, v;
  HeadsView<Number> out;  // forward
  float* lse_out = nullptr;
  HeadsView<const Number> o, grad_o;  // backward
  const float* lse = nullptr;
  HeadsView<Number> dq, dk, dv;
  MaskSums dmask;  // tasks that add to the same sums are not run side by side
};

template <class Number>
struct AttentionTable {
  // Queries [first, last) of one batch entry and query head.
  void (*forward)(const AttentionCall<Number>& call, int64_t batch, int64_t head, int64_t first, int64_t last,
                  float* scratch);
  // One batch entry and key head, with all query heads that read it.
  void (*backward)(const AttentionCall<Number>& call, int64_t batch, int64_t key_head, float* scratch);
  int64_t (*forward_scratch)(const AttentionOptions& options, int64_t queries);  // floats of one task
  int64_t (*backward_scratch)(const AttentionOptions& options);
};

using FloatAttention = AttentionTable<float>;
using HalfAttention = AttentionTable<uint16_t>;
LT_ISA_TABLES(FloatAttention, attention_table)
// Widened a block at a time, computed as floats are.
LT_ISA_TABLES(HalfAttention, bf16_attention_table)
LT_ISA_TABLES(HalfAttention, f16_attention_table)
// Multiplied as it is; null where the set has no products of bf16.
LT_BF16_TABLE(HalfAttention, bf16_attention_in_tiles)

}  // namespace lowtide::cpu
