// What attention_isa.cpp hands to attention.cpp: serial tasks that share nothing.
#pragma once

#include "kernels/cpu/attention.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/random.h"

namespace lowtide::cpu {

struct AttentionCall {
  AttentionOptions options;
  DropoutRule dropout;
  Heads q, k, v;
  MutableHeads out;  // forward
  float* lse_out = nullptr;
  Heads o, grad_o;  // backward
  const float* lse = nullptr;
  AttentionGrads grads;
};

struct AttentionTable {
  // Queries [first, last) of one batch entry and query head.
  void (*forward)(const AttentionCall& call, int64_t batch, int64_t head, int64_t first, int64_t last, float* scratch);
  // One batch entry and key head, with all query heads that read it.
  void (*backward)(const AttentionCall& call, int64_t batch, int64_t key_head, float* scratch);
  int64_t (*forward_scratch)(const AttentionOptions& options, int64_t queries);  // floats of one task
  int64_t (*backward_scratch)(const AttentionOptions& options);
};

LT_ISA_TABLES(AttentionTable, attention_table)

}  // namespace lowtide::cpu
