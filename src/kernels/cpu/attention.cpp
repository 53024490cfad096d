#include "kernels/cpu/attention.h"

#include "kernels/cpu/attention_table.h"
#include "kernels/cpu/task_slots.h"

namespace lowtide::cpu {
namespace {

constexpr int64_t kFloat = sizeof(float);

// With few heads, threads share the queries of one; each part packs the keys again, so parts are long.
int64_t parts_of(const AttentionOptions& options) {
  const int64_t heads = std::max<int64_t>(1, options.batch * options.query_heads);
  return std::max<int64_t>(1, std::min((32 + heads - 1) / heads, options.queries / 224));
}
int64_t part_queries(const AttentionOptions& options) {
  const int64_t parts = parts_of(options), each = (options.queries + parts - 1) / parts;
  return (each + 335) / 336 * 336 < options.queries ? (each + 335) / 336 * 336 : options.queries;
}

// Not worth a second thread: less than some 30 us of work.
bool is_small(const AttentionOptions& options) {
  return static_cast<double>(options.batch * options.query_heads) * options.queries * options.keys *
             (options.head_dim + options.value_dim) <
         1e6;
}

}  // namespace

int64_t attention_scratch_bytes(const AttentionOptions& options, int threads) {
  return attention_table().forward_scratch(options, part_queries(options)) * kFloat * threads;
}

int64_t attention_grad_scratch_bytes(const AttentionOptions& options, int threads) {
  return attention_table().backward_scratch(options) * kFloat * threads;
}

void attention(const AttentionOptions& options, Heads q, Heads k, Heads v, MutableHeads o, float* lse, void* scratch,
               int64_t scratch_bytes) {
  if (options.queries == 0) return;
  AttentionCall call;
  call.options = options;
  call.dropout = dropout_rule(options.dropout, options.random_key, options.random_stream);
  call.q = q;
  call.k = k;
  call.v = v;
  call.out = o;
  call.lse_out = lse;
  const int64_t each = part_queries(options), parts = (options.queries + each - 1) / each;
  const AttentionTable& table = attention_table();
  run_tasks(options.batch * options.query_heads * parts, table.forward_scratch(options, each), scratch, scratch_bytes,
            is_small(options), [&](int64_t task, float* own) {
              // The last queries of a causal head take longest: begin with them.
              const int64_t part = parts - 1 - task % parts, head = task / parts;
              table.forward(call, head / options.query_heads, head % options.query_heads, part * each,
                            std::min(options.queries, (part + 1) * each), own);
            });
}

void attention_grad(const AttentionOptions& options, Heads q, Heads k, Heads v, Heads o, const float* lse, Heads grad_o,
                    const AttentionGrads& grads, void* scratch, int64_t scratch_bytes) {
  AttentionCall call;
  call.options = options;
  call.dropout = dropout_rule(options.dropout, options.random_key, options.random_stream);
  call.q = q;
  call.k = k;
  call.v = v;
  call.o = o;
  call.lse = lse;
  call.grad_o = grad_o;
  call.grads = grads;
  const AttentionTable& table = attention_table();
  run_tasks(
      options.batch * options.key_heads, table.backward_scratch(options), scratch, scratch_bytes, is_small(options),
      [&](int64_t task, float* own) { table.backward(call, task / options.key_heads, task % options.key_heads, own); });
}

}  // namespace lowtide::cpu
