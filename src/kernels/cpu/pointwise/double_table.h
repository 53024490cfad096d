// Serial loops over runs of doubles. Every element's bits depend on its operands alone; all instruction sets have the
// same, whose functions are within 4 ulp. Results may lie in the place of an operand.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace lowtide::cpu {

enum class DoubleOp : uint8_t {
  kExp,
  kSin,
  kCos,
  kTanh,
  kSigmoid,
  kRelu,
  kSwish,
  kSoftplus,  // x > a ? x : log(1 + exp(x))
  kFastGelu,
};
constexpr int kDoubleOps = static_cast<int>(DoubleOp::kFastGelu) + 1;

// dx = dy * f'(saved), as UnaryGradOp.
enum class DoubleGradOp : uint8_t { kRelu, kTanhFromY, kSigmoidFromY, kSwish, kFastGelu };
constexpr int kDoubleGradOps = static_cast<int>(DoubleGradOp::kFastGelu) + 1;

enum class DoubleBinaryOp : uint8_t { kAdd, kSub, kMul, kDiv };
constexpr int kDoubleBinaryOps = static_cast<int>(DoubleBinaryOp::kDiv) + 1;

struct DoubleTable {
  using Unary = void (*)(const double* x, double* y, int64_t n, double a);
  using Binary = void (*)(const double* a, const double* b, double* y, int64_t n);
  Unary unary[kDoubleOps];
  Binary unary_grad[kDoubleGradOps];   // saved, dy
  Binary binary[kDoubleBinaryOps][3];  // by Advance
};

LT_ISA_TABLES(DoubleTable, double_table)

}  // namespace lowtide::cpu
