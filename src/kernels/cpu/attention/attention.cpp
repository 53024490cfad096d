// Scaled dot-product attention in f32, forward and backward, that never holds more of the score matrix than a block of
// kAttentionKeys keys and some queries:
//   y = dropout(softmax(scale q k' + mask)) v;  lse[b, h, i] = log(sum_j(exp(score))), dense
// A query that sees no key gets zeros, as from PyTorch, and a log-sum-exp of -inf. Backward recomputes the
// probabilities from the log-sum-exp. As many threads work as there is scratch for.
#include "kernels/cpu/attention/attention_table.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/task_slots.h"
#include "kernels/kernel_lines.h"
#include "kernels/rooms.h"

namespace lowtide::cpu {
namespace {

constexpr OperandRules kForward =
    with_output_layout({.inputs = {Accept::kInnerDense, Accept::kInnerDense, Accept::kInnerDense, Accept::kAny}},
                       OutputLayout::kHeadsLast);
constexpr OperandRules kBackward =
    with_output_layout({.inputs = {Accept::kInnerDense, Accept::kInnerDense, Accept::kInnerDense, Accept::kInnerDense,
                                   Accept::kInnerDense, Accept::kRowMajor, Accept::kAny}},
                       OutputLayout::kHeadsLast);

Heads heads(const TensorRef& t) { return {t.as<float>(), t.strides[0], t.strides[1], t.strides[2]}; }
MutableHeads heads_target(const TensorRef& t) { return {t.as<float>(), t.strides[0], t.strides[1], t.strides[2]}; }

// All but the mask's address.
AttentionOptions options_of(const BoundCall& call, const TensorRef& q, const TensorRef& k, const TensorRef& v,
                            const TensorRef* mask) {
  AttentionOptions options;
  options.batch = q.sizes[0];
  options.query_heads = q.sizes[1];
  options.key_heads = k.sizes[1];
  options.queries = q.sizes[2];
  options.keys = k.sizes[2];
  options.head_dim = q.sizes[3];
  options.value_dim = v.sizes[3];
  options.scale = static_cast<float>(call.attrs->f("scale"));
  options.causal = call.attrs->b("is_causal");
  if (mask != nullptr) {
    TensorRef scores;
    scores.rank = 4;
    const Strides strides = broadcast_strides(*mask, scores);
    options.mask.batch_stride = strides.at[0];
    options.mask.head_stride = strides.at[1];
    options.mask.query_stride = strides.at[2];
    options.mask.key_stride = strides.at[3];
  }
  options.dropout = call.attrs->f("dropout");
  return options;
}

AttentionCall task_call(const KernelCall& call, const AttentionOptions& options, uint64_t stream,
                        const TensorRef* mask) {
  AttentionCall result;
  result.options = options;
  if (mask != nullptr && mask->dtype == DType::kBool) {
    result.options.mask.visible = mask->as<uint8_t>();
  } else if (mask != nullptr) {
    result.options.mask.added = mask->as<float>();
  }
  result.dropout = dropout_rule(options.dropout, call.random_key, stream);
  return result;
}

int64_t bytes_of(const TensorRef& tensor) { return aligned(tensor.numel() * kFloatBytes); }

// An output that nobody wants is computed all the same, into scratch: of `like`'s shape, row-major.
TensorRef wanted_or_spare(const TensorRef* wanted, const TensorRef& like, char*& memory) {
  if (wanted != nullptr) return *wanted;
  TensorRef spare = like;
  int64_t stride = 1;
  for (int i = like.rank - 1; i >= 0; --i) {
    spare.strides[i] = stride;
    stride *= like.sizes[i];
  }
  spare.data = memory;
  memory += bytes_of(spare);
  return spare;
}

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

// ---- forward: q, k, v, mask? → y, lse

AttentionOptions forward_options(const BoundCall& call) {
  return options_of(call, call.inputs[0], call.inputs[1], call.inputs[2], input(call, 3));
}

uint64_t stream_of(const BoundCall& call) { return static_cast<uint64_t>(call.attrs->i("stream", 0)); }

struct Forward {
  explicit Forward(const BoundCall& call) : options(forward_options(call)), stream(stream_of(call)) {}
  AttentionOptions options;
  uint64_t stream;
};

int64_t lse_bytes(const AttentionOptions& options) {
  return aligned(options.batch * options.query_heads * options.queries * kFloatBytes);
}

int64_t attention_scratch(const BoundCall& call) {
  const AttentionOptions options = forward_options(call);
  const int64_t spare =
      output(call, 0)
          ? 0
          : aligned(options.batch * options.query_heads * options.queries * options.value_dim * kFloatBytes);
  return spare + lse_bytes(options) +
         attention_table().forward_scratch(options, part_queries(options)) * kFloatBytes * parallel_threads();
}

KernelStatus attention(const KernelCall& call, const Forward& forward) {
  const TensorRef &q = call.inputs[0], &k = call.inputs[1], &v = call.inputs[2];
  const AttentionOptions& options = forward.options;
  if (options.queries == 0) return nullptr;
  char* memory = static_cast<char*>(call.scratch);
  TensorRef like_y = q;
  like_y.sizes[3] = v.sizes[3];
  AttentionCall task = task_call(call, options, forward.stream, input(call, 3));
  task.q = heads(q);
  task.k = heads(k);
  task.v = heads(v);
  task.out = heads_target(wanted_or_spare(output(call, 0), like_y, memory));
  task.lse_out = output(call, 1) ? output_floats(call, 1) : reinterpret_cast<float*>(memory);
  memory += lse_bytes(options);
  const int64_t each = part_queries(options), parts = (options.queries + each - 1) / each;
  const AttentionTable& table = attention_table();
  run_tasks(options.batch * options.query_heads * parts, table.forward_scratch(options, each), memory,
            call.scratch_bytes - (memory - static_cast<char*>(call.scratch)), is_small(options),
            [&](int64_t at, float* own) {
              // The last queries of a causal head take longest: begin with them.
              const int64_t part = parts - 1 - at % parts, head = at / parts;
              table.forward(task, head / options.query_heads, head % options.query_heads, part * each,
                            std::min(options.queries, (part + 1) * each), own);
            });
  return nullptr;
}

// ---- backward: dy, q, k, v, y, lse, mask? → dq, dk, dv

AttentionOptions backward_options(const BoundCall& call) {
  return options_of(call, call.inputs[1], call.inputs[2], call.inputs[3], input(call, 6));
}

struct Backward {
  explicit Backward(const BoundCall& call) : options(backward_options(call)), stream(stream_of(call)) {}
  AttentionOptions options;
  uint64_t stream;
};

int64_t attention_grad_scratch(const BoundCall& call) {
  int64_t spare = 0;
  for (size_t i = 0; i < 3; ++i) {
    if (!output(call, i)) spare += bytes_of(call.inputs[1 + i]);
  }
  return spare + attention_table().backward_scratch(backward_options(call)) * kFloatBytes * parallel_threads();
}

KernelStatus attention_grad(const KernelCall& call, const Backward& backward) {
  const TensorRef &q = call.inputs[1], &k = call.inputs[2], &v = call.inputs[3];
  const AttentionOptions& options = backward.options;
  char* memory = static_cast<char*>(call.scratch);
  AttentionCall task = task_call(call, options, backward.stream, input(call, 6));
  task.grad_o = heads(call.inputs[0]);
  task.q = heads(q);
  task.k = heads(k);
  task.v = heads(v);
  task.o = heads(call.inputs[4]);
  task.lse = input_floats(call, 5);
  task.dq = heads_target(wanted_or_spare(output(call, 0), q, memory));
  task.dk = heads_target(wanted_or_spare(output(call, 1), k, memory));
  task.dv = heads_target(wanted_or_spare(output(call, 2), v, memory));
  const AttentionTable& table = attention_table();
  run_tasks(options.batch * options.key_heads, table.backward_scratch(options), memory,
            call.scratch_bytes - (memory - static_cast<char*>(call.scratch)), is_small(options),
            [&](int64_t at, float* own) { table.backward(task, at / options.key_heads, at % options.key_heads, own); });
  return nullptr;
}

const char* supports_attention(const KernelQuery& query) {
  const bool grad = query.op == Op::kAttentionGrad;
  const size_t mask = grad ? 6 : 3;
  for (size_t i = 0; i < query.inputs.size(); ++i) {
    if (!query.inputs[i].present) continue;
    const DType dtype = query.inputs[i].dtype;
    if (dtype != DType::kF32 && !(i == mask && dtype == DType::kBool)) return "not f32";
  }
  if (grad && query.outputs[3].present) return "a gradient of the mask is wanted";
  return nullptr;
}

}  // namespace

std::span<const Kernel> attention_kernels() {
  static constexpr Kernel kernels[] = {
#include "kernels/cpu/attention/list.inc"
  };
  return kernels;
}

}  // namespace lowtide::cpu
