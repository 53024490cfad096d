// What random_isa.cpp hands to random.cpp: serial loops over elements [first, first + n), first a multiple of 64; x and
// y begin at `first`.
#pragma once

#include "kernels/cpu/isa.h"
#include "kernels/cpu/random.h"

namespace lowtide::cpu {

struct RandomTable {
  void (*dropout)(const DropoutRule& rule, uint64_t first, const float* x, float* y, int64_t n);
  void (*words)(uint64_t key, uint64_t stream, uint64_t first, uint32_t* words, int64_t n);
};

LT_ISA_TABLES(RandomTable, random_table)

}  // namespace lowtide::cpu
