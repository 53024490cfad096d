// What ctc_isa.cpp hands to CtcLoss: steps of all states of a sequence. Rows of states have 2 places before and at
// least 2 behind those that are stepped over, n rounded up to kStatesAtOnce; all beside the n states hold -inf, and
// masks 0.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace lowtide::cpu {

constexpr int64_t kStatesAtOnce = 8;

struct CtcTable {
  // row[s] = log(exp(before[s]) + exp(before[s - 1]) + exp(before[s - 2]) if skips[s]) + log_probs[s]
  void (*forward)(const double* before, const int64_t* skips, const double* log_probs, double* row, int64_t n);
  // row[s] = log(exp(row[s]) + exp(row[s + 1]) + exp(row[s + 2]) if skips[s + 2]) + log_probs[s]
  void (*backward)(double* row, const int64_t* skips, const double* log_probs, int64_t n);
  // exp(before + after + loss - log_probs)
  void (*shares)(const double* before, const double* after, const double* log_probs, double loss, double* shares,
                 int64_t n);
  // y = factor exp(x), not a number where x is -inf; of as many as are whole vectors, whose number is returned.
  int64_t (*exp_f32)(const float* x, float* y, int64_t n, double factor);
  int64_t (*exp_f64)(const double* x, double* y, int64_t n, double factor);
};

LT_ISA_TABLES(CtcTable, ctc_table)

}  // namespace lowtide::cpu
