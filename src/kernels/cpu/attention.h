// Scaled dot-product attention in f32, forward and backward, that never holds more of the score matrix than a block of
// kAttentionKeys keys and some queries. Backward recomputes the probabilities from the log-sum-exp.
#pragma once

#include <cstdint>

namespace lowtide::cpu {

// [batch, heads, rows, dim] with any strides but the last, which is 1: [B, S, H, D] needs no copy.
template <class T>
struct HeadsView {
  T* data = nullptr;
  int64_t batch_stride = 0;
  int64_t head_stride = 0;
  int64_t row_stride = 0;
  T* at(int64_t batch, int64_t head) const { return data + batch * batch_stride + head * head_stride; }
};
using Heads = HeadsView<const float>;
using MutableHeads = HeadsView<float>;

// Added to the scores (f32), or where it is false the key is hidden (bool, one byte). Stride 0 repeats. Null: no mask.
struct AttentionMask {
  const float* added = nullptr;
  const uint8_t* visible = nullptr;
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
  // Dropout of the normalised probabilities by kernels/philox.h, element ((b * query_heads + h) * queries + i) * keys +
  // j.
  double dropout = 0;
  uint64_t random_key = 0;
  uint64_t random_stream = 0;
};

constexpr int64_t kAttentionKeys = 256;

// o = dropout(softmax(scale q k' + mask)) v; lse[b, h, i] = log(sum_j(exp(score))), dense. A query that sees no key
// gets zeros, as from PyTorch, and a log-sum-exp of -inf. scratch is 64-byte aligned; scratch_bytes /
// attention_scratch_bytes(options, 1) threads work at most.
void attention(const AttentionOptions& options, Heads q, Heads k, Heads v, MutableHeads o, float* lse, void* scratch,
               int64_t scratch_bytes);
int64_t attention_scratch_bytes(const AttentionOptions& options, int threads);

struct AttentionGrads {
  MutableHeads dq;
  MutableHeads dk;
  MutableHeads dv;
};
// From the forward's operands, outputs and lse, and the gradient of o.
void attention_grad(const AttentionOptions& options, Heads q, Heads k, Heads v, Heads o, const float* lse, Heads grad_o,
                    const AttentionGrads& grads, void* scratch, int64_t scratch_bytes);
int64_t attention_grad_scratch_bytes(const AttentionOptions& options, int threads);

}  // namespace lowtide::cpu
