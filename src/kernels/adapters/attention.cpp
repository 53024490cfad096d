#include "kernels/cpu/attention.h"

#include "kernels/adapters/list.h"
#include "kernels/adapters/strided.h"

namespace lowtide::adapters {

namespace {

cpu::Heads heads(const TensorRef& t) { return {t.as<float>(), t.strides[0], t.strides[1], t.strides[2]}; }
cpu::MutableHeads heads_target(const TensorRef& t) { return {t.as<float>(), t.strides[0], t.strides[1], t.strides[2]}; }

cpu::AttentionOptions options_of(const KernelCall& call, const TensorRef& q, const TensorRef& k, const TensorRef& v,
                                 const TensorRef* mask) {
  cpu::AttentionOptions options;
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
    if (mask->dtype == DType::kBool) {
      options.mask.visible = mask->as<uint8_t>();
    } else {
      options.mask.added = mask->as<float>();
    }
    options.mask.batch_stride = strides.at[0];
    options.mask.head_stride = strides.at[1];
    options.mask.query_stride = strides.at[2];
    options.mask.key_stride = strides.at[3];
  }
  options.dropout = call.attrs->f("dropout");
  options.random_key = call.random_key;
  options.random_stream = static_cast<uint64_t>(call.attrs->i("stream", 0));
  return options;
}

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }
int64_t bytes_of(const TensorRef& tensor) { return aligned(tensor.numel() * 4); }

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

}  // namespace

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

int64_t attention_scratch(const KernelCall& call) {
  const cpu::AttentionOptions options =
      options_of(call, call.inputs[0], call.inputs[1], call.inputs[2], input(call, 3));
  const int64_t spare =
      output(call, 0) ? 0 : aligned(options.batch * options.query_heads * options.queries * options.value_dim * 4);
  return spare + aligned(options.batch * options.query_heads * options.queries * 4) +
         cpu::attention_scratch_bytes(options, parallel_threads());
}

KernelStatus attention(const KernelCall& call) {
  const TensorRef &q = call.inputs[0], &k = call.inputs[1], &v = call.inputs[2];
  const cpu::AttentionOptions options = options_of(call, q, k, v, input(call, 3));
  char* memory = static_cast<char*>(call.scratch);
  TensorRef like_y = q;
  like_y.sizes[3] = v.sizes[3];
  const TensorRef y = wanted_or_spare(output(call, 0), like_y, memory);
  float* lse = reinterpret_cast<float*>(memory);
  memory += aligned(options.batch * options.query_heads * options.queries * 4);
  if (const TensorRef* wanted = output(call, 1)) lse = wanted->as<float>();
  cpu::attention(options, heads(q), heads(k), heads(v), heads_target(y), lse, memory,
                 call.scratch_bytes - (memory - static_cast<char*>(call.scratch)));
  return nullptr;
}

int64_t attention_grad_scratch(const KernelCall& call) {
  const cpu::AttentionOptions options =
      options_of(call, call.inputs[1], call.inputs[2], call.inputs[3], input(call, 6));
  int64_t spare = 0;
  for (size_t i = 0; i < 3; ++i) {
    if (!output(call, i)) spare += bytes_of(call.inputs[1 + i]);
  }
  return spare + cpu::attention_grad_scratch_bytes(options, parallel_threads());
}

KernelStatus attention_grad(const KernelCall& call) {
  const TensorRef &dy = call.inputs[0], &q = call.inputs[1], &k = call.inputs[2], &v = call.inputs[3];
  const TensorRef &y = call.inputs[4], &lse = call.inputs[5];
  const cpu::AttentionOptions options = options_of(call, q, k, v, input(call, 6));
  char* memory = static_cast<char*>(call.scratch);
  const TensorRef dq = wanted_or_spare(output(call, 0), q, memory), dk = wanted_or_spare(output(call, 1), k, memory),
                  dv = wanted_or_spare(output(call, 2), v, memory);
  cpu::attention_grad(options, heads(q), heads(k), heads(v), heads(y), lse.as<float>(), heads(dy),
                      {heads_target(dq), heads_target(dk), heads_target(dv)}, memory,
                      call.scratch_bytes - (memory - static_cast<char*>(call.scratch)));
  return nullptr;
}

}  // namespace lowtide::adapters
