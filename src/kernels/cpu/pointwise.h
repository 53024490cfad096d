// Pointwise f32 loops on all threads. Every element's bits depend on its operands alone, never on where it lies in a
// vector, a chunk or a row. Outputs may be one of the inputs if they coincide exactly.
#pragma once

#include <cstdint>

namespace lowtide::cpu {

enum class UnaryOp : uint8_t {
  kCopy,
  kNeg,
  kAbs,
  kSign,
  kExp,
  kLog,
  kSqrt,
  kRsqrt,
  kReciprocal,
  kSquare,
  kFloor,
  kCeil,
  kRound,  // half to even
  kTanh,
  kSigmoid,
  kErf,
  kSin,
  kCos,
  kLog1p,
  kExpm1,
  kRelu,
  kGelu,         // x/2 (1 + erf(x/sqrt(2)))
  kGeluTanh,     // x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
  kSilu,         // x sigmoid(x)
  kQuickGelu,    // x sigmoid(a x), a = 1.702 in the models that use it
  kSoftplus,     // log(1 + exp(x))
  kLeakyRelu,    // x > 0 ? x : a x
  kElu,          // x > 0 ? x : a (exp(x) - 1)
  kHardSigmoid,  // clip(x/6 + 1/2, 0, 1)
  kHardSwish,    // x clip(x/6 + 1/2, 0, 1)
  kClip,         // min(b, max(a, x))
  kAffine,       // a x + b, rounded twice
};
constexpr int kUnaryOps = static_cast<int>(UnaryOp::kAffine) + 1;

void unary(UnaryOp op, const float* x, float* y, int64_t n, float a = 0, float b = 0);

// dx = dy * f'(saved); saved is the forward's input x, or its output y where the name ends so.
enum class UnaryGradOp : uint8_t {
  kRelu,  // from x or from y alike
  kTanhFromY,
  kSigmoidFromY,
  kGelu,
  kGeluTanh,
  kSilu,
  kQuickGelu,
  kSoftplus,
  kLeakyRelu,
  kElu,
  kHardSigmoid,
  kHardSwish,
  kClip,  // dy where a <= x <= b, else 0
  kErf,
};
constexpr int kUnaryGradOps = static_cast<int>(UnaryGradOp::kErf) + 1;

void unary_grad(UnaryGradOp op, const float* saved, const float* dy, float* dx, int64_t n, float a = 0, float b = 0);

// A [rows, cols] view: element (r, c) is data[r * row_stride + c * col_stride], col_stride 0 or 1. Row stride 0 repeats
// a vector over rows, column stride 0 one scalar along a row, both one scalar everywhere.
struct Operand {
  const float* data = nullptr;
  int64_t row_stride = 0;
  int64_t col_stride = 0;
};
struct ByteOperand {
  const uint8_t* data = nullptr;
  int64_t row_stride = 0;
  int64_t col_stride = 0;
};

enum class BinaryOp : uint8_t { kAdd, kSub, kMul, kDiv, kMax, kMin, kPow };
constexpr int kBinaryOps = static_cast<int>(BinaryOp::kPow) + 1;
enum class CompareOp : uint8_t { kEqual, kNotEqual, kLess, kLessOrEqual, kGreater, kGreaterOrEqual };
constexpr int kCompareOps = static_cast<int>(CompareOp::kGreaterOrEqual) + 1;

// y is dense [rows, cols]. Maximum and minimum hand on NaN, as in PyTorch. Merge dimensions before calling: long rows
// are fast, many rows of a few columns are not.
void binary(BinaryOp op, int64_t rows, int64_t cols, Operand a, Operand b, float* y);
void compare(CompareOp op, int64_t rows, int64_t cols, Operand a, Operand b, uint8_t* y);
// y = condition ? a : b
void select(int64_t rows, int64_t cols, ByteOperand condition, Operand a, Operand b, float* y);

}  // namespace lowtide::cpu
