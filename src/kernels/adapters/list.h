// The functions named in kernels/cpu/list.inc: kernels on strided tensors over the raw loops of kernels/cpu and over
// the libraries of the process.
#pragma once

#include "kernels/kernel.h"

namespace lowtide::adapters {

#define LT_KERNEL(op, name, provider, function, ...) KernelStatus function(const KernelCall& call);
#include "kernels/cpu/list.inc"
#define LT_HALF(op, function, f32_supports, f32_scratch, rules) \
  KernelStatus half_##function(const KernelCall& call);         \
  int64_t half_##function##_scratch(const KernelCall& call);    \
  const char* supports_half_##function(const KernelQuery& query);
#include "kernels/adapters/half.inc"

// Reasons to refuse.
constexpr const char* (*kAlways)(const KernelQuery&) = nullptr;
const char* supports_float(const KernelQuery& query);
const char* supports_f32(const KernelQuery& query);
const char* supports_f32_output(const KernelQuery& query);
const char* supports_cast(const KernelQuery& query);
const char* supports_plain_elu(const KernelQuery& query);
const char* supports_plain_softplus(const KernelQuery& query);
const char* supports_last_axis(const KernelQuery& query);
const char* supports_bias_softmax(const KernelQuery& query);
const char* supports_batch_norm(const KernelQuery& query);
const char* supports_cross_entropy(const KernelQuery& query);
const char* supports_half_logits(const KernelQuery& query);
const char* supports_own_matmul(const KernelQuery& query);
const char* supports_blas(const KernelQuery& query);
const char* supports_attention(const KernelQuery& query);
const char* supports_gather(const KernelQuery& query);
const char* supports_gather_grad(const KernelQuery& query);
const char* supports_library_conv(const KernelQuery& query);
const char* supports_library_conv_grad(const KernelQuery& query);
const char* supports_image(const KernelQuery& query);
const char* supports_max_pool(const KernelQuery& query);

// Bytes of scratch, and of what a library allocates.
int64_t bias_softmax_scratch(const KernelCall& call);
int64_t reduce_scratch(const KernelCall& call);
int64_t norm_grad_scratch(const KernelCall& call);
int64_t batch_norm_scratch(const KernelCall& call);
int64_t cross_entropy_scratch(const KernelCall& call);
int64_t half_logits_scratch(const KernelCall& call);
int64_t half_logits_grad_scratch(const KernelCall& call);
int64_t own_matmul_scratch(const KernelCall& call);
int64_t blas_scratch(const KernelCall& call);
int64_t attention_scratch(const KernelCall& call);
int64_t attention_grad_scratch(const KernelCall& call);
int64_t gather_grad_scratch(const KernelCall& call);
int64_t library_conv_bytes(const KernelCall& call);
int64_t library_conv_grad_bytes(const KernelCall& call);

}  // namespace lowtide::adapters
