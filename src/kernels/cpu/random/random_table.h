// What random_isa.cpp hands to random.cpp, and to whoever drops what it computes: serial loops over elements
// [first, first + n) of the stream of kernels/philox.h, first a multiple of 64; x and y begin at `first`.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/stored.h"

namespace lowtide::cpu {

// Of one dropout: word >= threshold keeps. scale = 1 / (1 - p), and 0 for p = 1, where nothing may be kept.
struct DropoutRule {
  uint64_t key = 0;
  uint64_t stream = 0;
  uint32_t threshold = 0;
  float scale = 1;
};
DropoutRule dropout_rule(double p, uint64_t key, uint64_t stream);

struct RandomTable {
  // y[i] = keep(i) ? scale x[i] : 0, by how x and y are stored. The gradient is the same function of dy. y may be x
  // where both are stored alike.
  void (*dropout[kStored][kStored])(const DropoutRule& rule, uint64_t first, const void* x, void* y, int64_t n);
  // The same of floats, rounded as y is stored, plus `added`, stored as y is; null: nothing. y may be `added`.
  void (*dropout_of_floats[kStored])(const DropoutRule& rule, uint64_t first, const float* x, const void* added,
                                     void* y, int64_t n);
  void (*words)(uint64_t key, uint64_t stream, uint64_t first, uint32_t* words, int64_t n);
};

LT_ISA_TABLES(RandomTable, random_table)

}  // namespace lowtide::cpu
