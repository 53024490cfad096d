// Scaled dot-product attention of f32, bf16 and f16 operands, forward and backward, that never holds more of the score
// matrix than a block of kAttentionKeys keys and some queries:
//   y = dropout(softmax(scale q k' + (mask + bias))) v;  lse[b, h, i] = log(sum_j(exp(score))), dense
// A query that sees no key gets zeros, as from PyTorch, and a log-sum-exp of -inf. Backward recomputes the
// probabilities from the log-sum-exp. As many threads work as there is scratch for.
#include "kernels/cpu/attention/attention_table.h"
#include "kernels/cpu/copy/copy.h"
#include "kernels/cpu/dense.h"
#include "kernels/kernel_lines.h"
#include "kernels/packed_heads.h"
#include "kernels/rooms.h"
#include "kernels/task_slots.h"

namespace lowtide::cpu {
namespace {

template <class View>
View strides_in(const TensorRef& t) {
  return {nullptr, t.strides[0], t.strides[1], t.strides[2]};
}

void stride_over_scores(const BoundCall& call, const TensorRef* tensor, ScoreView& view) {
  if (tensor == nullptr) return;
  TensorRef scores;
  scores.rank = 4;
  const Strides strides = broadcast_strides(call, *tensor, scores);
  view.batch_stride = strides.at[0];
  view.head_stride = strides.at[1];
  view.query_stride = strides.at[2];
  view.key_stride = strides.at[3];
}

// q, k, v from input `first` on, mask? and bias? from `mask` on. All but the addresses.
AttentionOptions options_of(const BoundCall& call, size_t first, size_t mask) {
  const TensorRef &q = call.inputs[first], &k = call.inputs[first + 1], &v = call.inputs[first + 2];
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
  stride_over_scores(call, input(call, mask), options.mask);
  stride_over_scores(call, input(call, mask + 1), options.bias);
  options.dropout = call.attrs->f("dropout");
  options.first_element = static_cast<uint64_t>(call.attrs->i("first_element", 0));
  return options;
}

// What both directions are prepared to: the call of their tasks but for its addresses and the random key.
template <class Number>
struct Tasks {
  Tasks(const BoundCall& call, const AttentionOptions& options, DType dtype)
      : stream(static_cast<uint64_t>(call.attrs->i("stream", 0))), table(&table_for(dtype)) {
    task.options = options;
  }
  static const AttentionTable<Number>& table_for(DType dtype);

  AttentionCall<Number> task;
  uint64_t stream;
  const AttentionTable<Number>* table;
};

template <>
const FloatAttention& Tasks<float>::table_for(DType) {
  return attention_table();
}
template <>
const HalfAttention& Tasks<uint16_t>::table_for(DType dtype) {
  if (dtype == DType::kF16) return f16_attention_table();
  const HalfAttention* in_tiles = bf16_attention_in_tiles();
  return in_tiles != nullptr ? *in_tiles : bf16_attention_table();
}

template <class Number>
AttentionCall<Number> with_mask(const KernelCall& call, const Tasks<Number>& tasks, size_t mask_at) {
  AttentionCall<Number> task = tasks.task;
  if (const TensorRef* mask = input(call, mask_at)) {
    task.options.mask.data = mask->data;
    task.options.mask.hides = mask->dtype == DType::kBool;
    task.options.mask.floats = mask->dtype == DType::kF32;
  }
  if (const TensorRef* bias = input(call, mask_at + 1)) task.options.bias.data = bias->data;
  task.dropout = dropout_rule(task.options.dropout, call.random_key, tasks.stream);
  return task;
}

template <class Number>
const Number* numbers(const KernelCall& call, size_t index) {
  return call.inputs[index].as<Number>();
}

// An output, which is computed even if nobody wants it: into scratch, of `like`'s shape, row-major.
template <class Number>
struct Target {
  HeadsView<Number> heads;
  int64_t spare_bytes = 0;

  Target(const TensorRef* wanted, const TensorRef& like) {
    if (wanted != nullptr) {
      heads = strides_in<HeadsView<Number>>(*wanted);
      return;
    }
    heads.row_stride = like.sizes[3];
    heads.head_stride = heads.row_stride * like.sizes[2];
    heads.batch_stride = heads.head_stride * like.sizes[1];
    spare_bytes = aligned(like.numel() * static_cast<int64_t>(sizeof(Number)));
  }
  HeadsView<Number> at(const TensorRef* wanted, char*& memory) const {
    HeadsView<Number> result = heads;
    result.data = wanted != nullptr ? wanted->as<Number>() : reinterpret_cast<Number*>(memory);
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

// ---- forward: q, k, v, mask?, bias? → y, lse

TensorRef like_y(const BoundCall& call) {
  TensorRef y = call.inputs[0];
  y.sizes[3] = call.inputs[2].sizes[3];
  return y;
}

template <class Number>
struct Forward : Tasks<Number> {
  using Tasks<Number>::task;
  explicit Forward(const BoundCall& call)
      : Tasks<Number>(call, options_of(call, 0, 3), call.inputs[0].dtype), y(output(call, 0), like_y(call)) {
    const AttentionOptions& options = task.options;
    using Heads = HeadsView<const Number>;
    task.q = strides_in<Heads>(call.inputs[0]);
    task.k = strides_in<Heads>(call.inputs[1]);
    task.v = strides_in<Heads>(call.inputs[2]);
    lse_bytes = aligned(options.batch * options.query_heads * options.queries * kFloatBytes);
    each = part_queries(options);
    parts = options.queries == 0 ? 0 : (options.queries + each - 1) / each;
    task_floats = this->table->forward_scratch(options, each);
    small = is_small(options);
  }
  Target<Number> y;
  int64_t lse_bytes, each, parts, task_floats;
  bool small;
};

template <class Number>
int64_t forward_scratch(const BoundCall& call) {
  const Forward<Number> forward(call);
  return forward.y.spare_bytes + forward.lse_bytes + forward.task_floats * kFloatBytes * parallel_threads();
}

template <class Number>
KernelStatus run_forward(const KernelCall& call, const Forward<Number>& forward) {
  const AttentionOptions& options = forward.task.options;
  char* memory = static_cast<char*>(call.scratch);
  AttentionCall<Number> task = with_mask(call, forward, 3);
  task.q.data = numbers<Number>(call, 0);
  task.k.data = numbers<Number>(call, 1);
  task.v.data = numbers<Number>(call, 2);
  task.out = forward.y.at(output(call, 0), memory);
  task.lse_out = output(call, 1) ? output_floats(call, 1) : reinterpret_cast<float*>(memory);
  memory += forward.lse_bytes;
  const int64_t each = forward.each, parts = forward.parts;
  run_tasks(options.batch * options.query_heads * parts, forward.task_floats, memory,
            call.scratch_bytes - (memory - static_cast<char*>(call.scratch)), forward.small,
            [&](int64_t at, float* own) {
              // The last queries of a causal head take longest: begin with them.
              const int64_t part = parts - 1 - at % parts, head = at / parts;
              forward.table->forward(task, head / options.query_heads, head % options.query_heads, part * each,
                                     std::min(options.queries, (part + 1) * each), own);
            });
  return nullptr;
}

// ---- backward: dy, q, k, v, y, lse, mask?, bias? → dq, dk, dv, dmask?

// The mask's gradient, summed in f32 where it is wanted: where it lies, or in scratch for halves.
struct MaskTarget {
  MaskSums sums;
  int64_t numel = 0, scratch_bytes = 0;
  bool by_batch = false, by_head = false;  // has sums of its own for each
  TensorCopy rounded;

  MaskTarget(const BoundCall& call, const TensorRef* wanted) {
    if (wanted == nullptr) return;
    numel = wanted->numel();
    TensorRef summed = *wanted;
    if (wanted->dtype != DType::kF32) {
      summed.dtype = DType::kF32;
      int64_t stride = 1;
      for (int i = summed.rank - 1; i >= 0; stride *= summed.sizes[i--]) summed.strides[i] = stride;
      rounded = TensorCopy(call, summed, *wanted);
      scratch_bytes = aligned(numel * kFloatBytes);
    }
    TensorRef scores;
    scores.rank = 4;
    const Strides strides = broadcast_strides(call, summed, scores);
    sums = {nullptr, strides.at[0], strides.at[1], strides.at[2], strides.at[3]};
    by_batch = sums.batch_stride != 0;
    by_head = sums.head_stride != 0;
  }
  MaskSums begin(const TensorRef* wanted, char*& memory) const {
    MaskSums result = sums;
    if (wanted == nullptr) return result;
    result.data = scratch_bytes == 0 ? wanted->as<float>() : reinterpret_cast<float*>(memory);
    memory += scratch_bytes;
    std::fill_n(result.data, numel, 0.0f);
    return result;
  }
  void end(const TensorRef* wanted, const MaskSums& begun) const {
    if (scratch_bytes != 0) rounded.run(begun.data, wanted->data);
  }
};

// A dim of one element has no stride to speak of.
bool may_lie_there(const TensorRef* gradient, const TensorRef& of) {
  if (gradient == nullptr) return false;
  for (int i = 0; i < of.rank; ++i)
    if (of.sizes[i] != 1 && of.strides[i] != gradient->strides[i]) return false;
  return true;
}

template <class Number>
struct Backward : Tasks<Number> {
  using Tasks<Number>::task;
  explicit Backward(const BoundCall& call)
      : Tasks<Number>(call, options_of(call, 1, 6), call.inputs[1].dtype),
        dq(output(call, 0), call.inputs[1]),
        dk(output(call, 1), call.inputs[2]),
        dv(output(call, 2), call.inputs[3]),
        dmask(call, output(call, 3)) {
    using Heads = HeadsView<const Number>;
    task.grad_o = strides_in<Heads>(call.inputs[0]);
    task.q = strides_in<Heads>(call.inputs[1]);
    task.k = strides_in<Heads>(call.inputs[2]);
    task.v = strides_in<Heads>(call.inputs[3]);
    task.o = strides_in<Heads>(call.inputs[4]);
    for (size_t i = 0; i < 3; ++i)
      task.options.may_overwrite = task.options.may_overwrite || may_lie_there(output(call, i), call.inputs[1 + i]);
    task_floats = this->table->backward_scratch(task.options);
    small = is_small(task.options);
  }
  Target<Number> dq, dk, dv;
  MaskTarget dmask;
  int64_t task_floats;
  bool small;
};

template <class Number>
int64_t backward_scratch(const BoundCall& call) {
  const Backward<Number> backward(call);
  return backward.dq.spare_bytes + backward.dk.spare_bytes + backward.dv.spare_bytes + backward.dmask.scratch_bytes +
         backward.task_floats * kFloatBytes * parallel_threads();
}

template <class Number>
KernelStatus run_backward(const KernelCall& call, const Backward<Number>& backward) {
  const AttentionOptions& options = backward.task.options;
  char* memory = static_cast<char*>(call.scratch);
  AttentionCall<Number> task = with_mask(call, backward, 6);
  task.grad_o.data = numbers<Number>(call, 0);
  task.q.data = numbers<Number>(call, 1);
  task.k.data = numbers<Number>(call, 2);
  task.v.data = numbers<Number>(call, 3);
  task.o.data = numbers<Number>(call, 4);
  task.lse = input_floats(call, 5);
  task.dq = backward.dq.at(output(call, 0), memory);
  task.dk = backward.dk.at(output(call, 1), memory);
  task.dv = backward.dv.at(output(call, 2), memory);
  const TensorRef* dmask = output(call, 3);
  task.dmask = backward.dmask.begin(dmask, memory);
  // What is summed into the same numbers runs in one task, in order.
  const int64_t batches = dmask == nullptr || backward.dmask.by_batch ? 1 : options.batch;
  const int64_t heads = dmask == nullptr || backward.dmask.by_head ? 1 : options.key_heads;
  const int64_t across = options.key_heads / std::max<int64_t>(1, heads);
  const int64_t tasks = heads == 0 || batches == 0 ? 0 : options.batch / batches * across;
  run_tasks(tasks, backward.task_floats, memory, call.scratch_bytes - (memory - static_cast<char*>(call.scratch)),
            backward.small, [&](int64_t at, float* own) {
              for (int64_t batch = at / across * batches; batch < (at / across + 1) * batches; ++batch) {
                for (int64_t head = at % across * heads; head < (at % across + 1) * heads; ++head)
                  backward.table->backward(task, batch, head, own);
              }
            });
  backward.dmask.end(dmask, task.dmask);
  return nullptr;
}

// ---- the kernels: all operands but the mask, the bias and the log-sum-exp are of one dtype

using FloatForward = Forward<float>;
using FloatBackward = Backward<float>;
KernelStatus attention(const KernelCall& call, const FloatForward& forward) { return run_forward(call, forward); }
KernelStatus attention_grad(const KernelCall& call, const FloatBackward& backward) {
  return run_backward(call, backward);
}

using HalfForward = Forward<uint16_t>;
using HalfBackward = Backward<uint16_t>;
KernelStatus half_attention(const KernelCall& call, const HalfForward& forward) { return run_forward(call, forward); }
KernelStatus half_attention_grad(const KernelCall& call, const HalfBackward& backward) {
  return run_backward(call, backward);
}

const char* supports_attention(const KernelQuery& query) {
  return query.inputs[0].dtype != DType::kF32 ? "not f32" : nullptr;
}
const char* supports_half_attention(const KernelQuery& query) {
  return !is_half(query.inputs[0].dtype) ? "neither bf16 nor f16" : nullptr;
}

}  // namespace

std::span<const Kernel> attention_kernels() {
  static constexpr Kernel kernels[] = {
#include "kernels/cpu/attention/list.inc"
  };
  return kernels;
}

}  // namespace lowtide::cpu
