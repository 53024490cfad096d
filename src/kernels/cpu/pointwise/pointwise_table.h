// What pointwise_isa.cpp hands to pointwise.cpp, and to whoever computes these functions: serial loops over a run.
// Every element's bits depend on its operands alone, never on where it lies in a vector or a run. Results may lie in
// the place of an operand.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/stored.h"

namespace lowtide::cpu {

enum class UnaryOp : uint8_t {
#define LT_UNARY(op) k##op,
#include "kernels/cpu/pointwise/unary.inc"
  // Of ops with attributes, and for pow.
  kCopy,
  kSquare,
  kGelu,       // x/2 (1 + erf(x/sqrt(2)))
  kFastGelu,   // x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
  kQuickGelu,  // x sigmoid(a x), a = 1.702 in the models that use it
  kSoftplus,   // log(1 + exp(x))
  kHuber,      // |x| <= a ? x^2 / 2 : a (|x| - a / 2)
  kLeakyRelu,  // x > 0 ? x : a x
  kElu,        // x > 0 ? b x : a (exp(x) - 1)
  kClip,       // min(b, max(a, x))
};
constexpr int kUnaryOps = static_cast<int>(UnaryOp::kClip) + 1;

// dx = dy * f'(saved); saved is the forward's input x, or its output y where the name ends so.
enum class UnaryGradOp : uint8_t {
  kRelu,  // from x or from y alike
  kTanhFromY,
  kSigmoidFromY,
  kGelu,
  kFastGelu,
  kSwish,
  kMish,
  kQuickGelu,
};
constexpr int kUnaryGradOps = static_cast<int>(UnaryGradOp::kQuickGelu) + 1;

// Maximum and minimum hand on NaN, as in PyTorch.
enum class BinaryOp : uint8_t { kAdd, kSub, kMul, kDiv, kMax, kMin, kPow };
constexpr int kBinaryOps = static_cast<int>(BinaryOp::kPow) + 1;
enum class CompareOp : uint8_t { kEqual, kNotEqual, kLess, kLessOrEqual, kGreater, kGreaterOrEqual };
constexpr int kCompareOps = static_cast<int>(CompareOp::kGreaterOrEqual) + 1;

// How the two operands of a row advance.
enum class Advance : uint8_t { kBoth, kLeft, kRight };

// Loops whose operands are stored alike, but for the biases, which are floats: computed in f32, rounded once.
struct StoredLoops {
  using Unary = void (*)(const void* x, void* y, int64_t n, float a, float b);
  using UnaryGrad = void (*)(const void* saved, const void* dy, void* dx, int64_t n, float a);
  using Binary = void (*)(const void* a, const void* b, void* y, int64_t n);
  // Of sum = x + bias, rounded as x is stored: the sum as floats, f(sum), dy f'(sum).
  using Sum = void (*)(const void* x, const float* bias, float* sum, int64_t n);
  using OfSum = void (*)(const void* x, const float* bias, void* y, int64_t n);
  using OfSumGrad = void (*)(const void* x, const float* bias, const void* dy, void* dx, int64_t n);
  Unary unary[kUnaryOps];
  UnaryGrad unary_grad[kUnaryGradOps];
  Binary binary[kBinaryOps][3];
  Sum sum;
  OfSum gelu_of_sum, fast_gelu_of_sum;
  OfSumGrad gelu_of_sum_grad, fast_gelu_of_sum_grad;
};

struct PointwiseTable {
  using Compare = void (*)(const float* a, const float* b, uint8_t* y, int64_t n);
  using Select = void (*)(const uint8_t* condition, const float* a, const float* b, float* y, int64_t n);
  StoredLoops stored[kStored];
  Compare compare[kCompareOps][3];
  Select select[4];  // by (a advances) + 2 (b advances)
};

LT_ISA_TABLES(PointwiseTable, pointwise_table)

inline const StoredLoops& pointwise_loops(Stored stored = kStoredF32) { return pointwise_table().stored[stored]; }

}  // namespace lowtide::cpu
