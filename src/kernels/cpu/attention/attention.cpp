// Scaled dot-product attention in f32, forward and backward, that never holds more of the score matrix than a block of
// kAttentionKeys keys and some queries:
//   y = dropout(softmax(scale q k' + mask)) v;  lse[b, h, i] = log(sum_j(exp(score))), dense
// A query that sees no key gets zeros, as from PyTorch, and a log-sum-exp of -inf. Backward recomputes the
// probabilities from the log-sum-exp. As many threads work as there is scratch for.
#include "kernels/cpu/attention/attention_table.h"
#include "kernels/cpu/dense.h"
#include "kernels/kernel_lines.h"
#include "kernels/rooms.h"
#include "kernels/task_slots.h"

namespace lowtide::cpu {
namespace {

constexpr OperandRules kForward =
    with_output_layout({.inputs = {Accept::kInnerDense, Accept::kInnerDense, Accept::kInnerDense, Accept::kAny}},
                       OutputLayout::kHeadsLast);
constexpr OperandRules kBackward =
    with_output_layout({.inputs = {Accept::kInnerDense, Accept::kInnerDense, Accept::kInnerDense, Accept::kInnerDense,
                                   Accept::kInnerDense, Accept::kRowMajor, Accept::kAny}},
                       OutputLayout::kHeadsLast);

template <class View>
View strides_in(const TensorRef& t) {
  return {nullptr, t.strides[0], t.strides[1], t.strides[2]};
}

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
    const Strides strides = broadcast_strides(call, *mask, scores);
    options.mask.batch_stride = strides.at[0];
    options.mask.head_stride = strides.at[1];
    options.mask.query_stride = strides.at[2];
    options.mask.key_stride = strides.at[3];
  }
  options.dropout = call.attrs->f("dropout");
  return options;
}

// What both directions are prepared to: the call of their tasks but for its addresses and the random key.
struct Tasks {
  Tasks(const BoundCall& call, const AttentionOptions& options)
      : stream(static_cast<uint64_t>(call.attrs->i("stream", 0))) {
    task.options = options;
  }
  AttentionCall task;
  uint64_t stream;
};

AttentionCall with_mask(const KernelCall& call, const Tasks& tasks, const TensorRef* mask) {
  AttentionCall task = tasks.task;
  if (mask != nullptr && mask->dtype == DType::kBool) {
    task.options.mask.visible = mask->as<uint8_t>();
  } else if (mask != nullptr) {
    task.options.mask.added = mask->as<float>();
  }
  task.dropout = dropout_rule(task.options.dropout, call.random_key, tasks.stream);
  return task;
}

int64_t bytes_of(const TensorRef& tensor) { return aligned(tensor.numel() * kFloatBytes); }

// An output, which is computed even if nobody wants it: into scratch, of `like`'s shape, row-major.
struct Target {
  MutableHeads heads;
  int64_t spare_bytes = 0;

  Target(const TensorRef* wanted, const TensorRef& like) {
    if (wanted != nullptr) {
      heads = strides_in<MutableHeads>(*wanted);
      return;
    }
    heads.row_stride = like.sizes[3];
    heads.head_stride = heads.row_stride * like.sizes[2];
    heads.batch_stride = heads.head_stride * like.sizes[1];
    spare_bytes = bytes_of(like);
  }
  MutableHeads at(const TensorRef* wanted, char*& memory) const {
    MutableHeads result = heads;
    result.data = wanted != nullptr ? wanted->as<float>() : reinterpret_cast<float*>(memory);
    memory += spare_bytes;
    return result;
  }
};

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

TensorRef like_y(const BoundCall& call) {
  TensorRef y = call.inputs[0];
  y.sizes[3] = call.inputs[2].sizes[3];
  return y;
}

struct Forward : Tasks {
  explicit Forward(const BoundCall& call)
      : Tasks(call, options_of(call, call.inputs[0], call.inputs[1], call.inputs[2], input(call, 3))),
        y(output(call, 0), like_y(call)) {
    const AttentionOptions& options = task.options;
    task.q = strides_in<Heads>(call.inputs[0]);
    task.k = strides_in<Heads>(call.inputs[1]);
    task.v = strides_in<Heads>(call.inputs[2]);
    lse_bytes = aligned(options.batch * options.query_heads * options.queries * kFloatBytes);
    each = part_queries(options);
    parts = options.queries == 0 ? 0 : (options.queries + each - 1) / each;
    task_floats = attention_table().forward_scratch(options, each);
    small = is_small(options);
  }
  Target y;
  int64_t lse_bytes, each, parts, task_floats;
  bool small;
};

int64_t attention_scratch(const BoundCall& call) {
  const Forward forward(call);
  return forward.y.spare_bytes + forward.lse_bytes + forward.task_floats * kFloatBytes * parallel_threads();
}

KernelStatus attention(const KernelCall& call, const Forward& forward) {
  const AttentionOptions& options = forward.task.options;
  char* memory = static_cast<char*>(call.scratch);
  AttentionCall task = with_mask(call, forward, input(call, 3));
  task.q.data = input_floats(call, 0);
  task.k.data = input_floats(call, 1);
  task.v.data = input_floats(call, 2);
  task.out = forward.y.at(output(call, 0), memory);
  task.lse_out = output(call, 1) ? output_floats(call, 1) : reinterpret_cast<float*>(memory);
  memory += forward.lse_bytes;
  const int64_t each = forward.each, parts = forward.parts;
  const AttentionTable& table = attention_table();
  run_tasks(options.batch * options.query_heads * parts, forward.task_floats, memory,
            call.scratch_bytes - (memory - static_cast<char*>(call.scratch)), forward.small,
            [&](int64_t at, float* own) {
              // The last queries of a causal head take longest: begin with them.
              const int64_t part = parts - 1 - at % parts, head = at / parts;
              table.forward(task, head / options.query_heads, head % options.query_heads, part * each,
                            std::min(options.queries, (part + 1) * each), own);
            });
  return nullptr;
}

// ---- backward: dy, q, k, v, y, lse, mask? → dq, dk, dv

struct Backward : Tasks {
  explicit Backward(const BoundCall& call)
      : Tasks(call, options_of(call, call.inputs[1], call.inputs[2], call.inputs[3], input(call, 6))),
        dq(output(call, 0), call.inputs[1]),
        dk(output(call, 1), call.inputs[2]),
        dv(output(call, 2), call.inputs[3]) {
    task.grad_o = strides_in<Heads>(call.inputs[0]);
    task.q = strides_in<Heads>(call.inputs[1]);
    task.k = strides_in<Heads>(call.inputs[2]);
    task.v = strides_in<Heads>(call.inputs[3]);
    task.o = strides_in<Heads>(call.inputs[4]);
    task_floats = attention_table().backward_scratch(task.options);
    small = is_small(task.options);
  }
  Target dq, dk, dv;
  int64_t task_floats;
  bool small;
};

int64_t attention_grad_scratch(const BoundCall& call) {
  const Backward backward(call);
  return backward.dq.spare_bytes + backward.dk.spare_bytes + backward.dv.spare_bytes +
         backward.task_floats * kFloatBytes * parallel_threads();
}

KernelStatus attention_grad(const KernelCall& call, const Backward& backward) {
  const AttentionOptions& options = backward.task.options;
  char* memory = static_cast<char*>(call.scratch);
  AttentionCall task = with_mask(call, backward, input(call, 6));
  task.grad_o.data = input_floats(call, 0);
  task.q.data = input_floats(call, 1);
  task.k.data = input_floats(call, 2);
  task.v.data = input_floats(call, 3);
  task.o.data = input_floats(call, 4);
  task.lse = input_floats(call, 5);
  task.dq = backward.dq.at(output(call, 0), memory);
  task.dk = backward.dk.at(output(call, 1), memory);
  task.dv = backward.dv.at(output(call, 2), memory);
  const AttentionTable& table = attention_table();
  run_tasks(options.batch * options.key_heads, backward.task_floats, memory,
            call.scratch_bytes - (memory - static_cast<char*>(call.scratch)), backward.small,
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
