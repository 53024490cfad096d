#include "kernels/cpu/pointwise.h"

#include <algorithm>
#include <cstring>

#include "base/parallel.h"
#include "kernels/cpu/pointwise_table.h"

namespace lowtide::cpu {
namespace {

// Elements that take about 30 us on one core: below that a second thread costs more than it brings.
constexpr int64_t kLightGrain = 1 << 16;
constexpr int64_t kMathGrain = 1 << 14;
constexpr int64_t kLibmGrain = 1 << 12;

int64_t grain_of(UnaryOp op) {
  switch (op) {
    case UnaryOp::kSin:
    case UnaryOp::kCos:
    case UnaryOp::kLog1p:
    case UnaryOp::kExpm1: return kLibmGrain;
    case UnaryOp::kExp:
    case UnaryOp::kLog:
    case UnaryOp::kTanh:
    case UnaryOp::kSigmoid:
    case UnaryOp::kErf:
    case UnaryOp::kGelu:
    case UnaryOp::kGeluTanh:
    case UnaryOp::kSilu:
    case UnaryOp::kQuickGelu:
    case UnaryOp::kSoftplus:
    case UnaryOp::kElu: return kMathGrain;
    default: return kLightGrain;
  }
}

// row(r, c, n) over the pieces of a [rows, cols] loop: whole rows, or parts of the only one.
template <class Row>
void for_rows(int64_t rows, int64_t cols, int64_t grain, Row row) {
  if (cols == 0) return;
  if (rows == 1) {
    parallel_for(cols, grain, [&](int64_t begin, int64_t end) { row(int64_t{0}, begin, end - begin); });
    return;
  }
  parallel_for(rows, std::max<int64_t>(1, grain / cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) row(r, int64_t{0}, cols);
  });
}

// Rows that follow each other without a gap are one row.
template <class... Operands>
void merge_rows(int64_t& rows, int64_t& cols, Operands&... operands) {
  const auto merges = [&](const auto& operand) { return operand.row_stride == operand.col_stride * cols; };
  if (rows > 1 && (merges(operands) && ...)) {
    cols *= rows;
    rows = 1;
  }
}

Advance advance_of(const Operand& a, const Operand& b) {
  return b.col_stride == 0 ? Advance::kLeft : a.col_stride == 0 ? Advance::kRight : Advance::kBoth;
}

// Both stand still along the row: compute one element and repeat it.
template <class Loop, class Value>
void repeat(Loop loop, const float* a, const float* b, Value* y, int64_t n) {
  loop(a, b, y, 1);
  std::fill(y + 1, y + n, y[0]);
}

template <class Loops, class Value>
void for_pairs(const Loops& loops, int64_t grain, int64_t rows, int64_t cols, Operand a, Operand b, Value* y) {
  merge_rows(rows, cols, a, b);
  const bool still = a.col_stride == 0 && b.col_stride == 0;
  const auto loop = loops[static_cast<int>(advance_of(a, b))];
  for_rows(rows, cols, grain, [&](int64_t r, int64_t c, int64_t n) {
    const float* row_a = a.data + r * a.row_stride + c * a.col_stride;
    const float* row_b = b.data + r * b.row_stride + c * b.col_stride;
    Value* row_y = y + r * cols + c;
    if (still) {
      repeat(loop, row_a, row_b, row_y, n);
    } else {
      loop(row_a, row_b, row_y, n);
    }
  });
}

}  // namespace

void unary(UnaryOp op, const float* x, float* y, int64_t n, float a, float b) {
  const auto loop = pointwise_table().unary[static_cast<int>(op)];
  parallel_for(n, grain_of(op), [&](int64_t begin, int64_t end) { loop(x + begin, y + begin, end - begin, a, b); });
}

void unary_grad(UnaryGradOp op, const float* saved, const float* dy, float* dx, int64_t n, float a, float b) {
  const auto loop = pointwise_table().unary_grad[static_cast<int>(op)];
  parallel_for(n, kMathGrain,
               [&](int64_t begin, int64_t end) { loop(saved + begin, dy + begin, dx + begin, end - begin, a, b); });
}

void binary(BinaryOp op, int64_t rows, int64_t cols, Operand a, Operand b, float* y) {
  const int64_t grain = op == BinaryOp::kPow ? kLibmGrain : kLightGrain;
  for_pairs(pointwise_table().binary[static_cast<int>(op)], grain, rows, cols, a, b, y);
}

void compare(CompareOp op, int64_t rows, int64_t cols, Operand a, Operand b, uint8_t* y) {
  for_pairs(pointwise_table().compare[static_cast<int>(op)], kLightGrain, rows, cols, a, b, y);
}

void select(int64_t rows, int64_t cols, ByteOperand condition, Operand a, Operand b, float* y) {
  merge_rows(rows, cols, condition, a, b);
  const auto loop = pointwise_table().select[a.col_stride + 2 * b.col_stride];
  for_rows(rows, cols, kLightGrain, [&](int64_t r, int64_t c, int64_t n) {
    const uint8_t* row_condition = condition.data + r * condition.row_stride + c * condition.col_stride;
    const float* row_a = a.data + r * a.row_stride + c * a.col_stride;
    const float* row_b = b.data + r * b.row_stride + c * b.col_stride;
    float* row_y = y + r * cols + c;
    if (condition.col_stride == 1) {
      loop(row_condition, row_a, row_b, row_y, n);
    } else {
      const bool left = *row_condition != 0;
      const float* from = left ? row_a : row_b;
      if ((left ? a : b).col_stride == 1) {
        std::memmove(row_y, from, sizeof(float) * n);
      } else {
        std::fill(row_y, row_y + n, *from);
      }
    }
  });
}

}  // namespace lowtide::cpu
