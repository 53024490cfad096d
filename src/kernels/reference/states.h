// What the reference kernels are prepared to: attributes, how the operands are walked, and what else follows from their
// sizes. None holds an operand: addresses are known at the run.
#pragma once

#include "kernels/philox.h"
#include "kernels/reference/elements.h"

namespace lowtide::reference {

// In list.inc: a state for each operand.
template <class Each>
struct PerOperand;

// ---- walks

template <size_t N>
std::array<const TensorRef*, N> first_inputs(const BoundCall& call) {
  std::array<const TensorRef*, N> inputs;
  for (size_t i = 0; i < N; ++i) inputs[i] = &input_or_absent(call, i);
  return inputs;
}

// The first N inputs and the output in row-major order.
template <size_t N>
struct Mapped : Runs<N + 1> {
  explicit Mapped(const BoundCall& call)
      : Runs<N + 1>(row_major_order<N>(call, call.outputs[0], first_inputs<N>(call)), kRun) {}
};
using Unary = Mapped<1>;
using Binary = Mapped<2>;
using Ternary = Mapped<3>;

// All positions of one tensor.
Grid<1> positions(const BoundCall& call, const TensorRef& tensor);
// Two tensors of one shape.
Runs<2> pairs(const BoundCall& call, const TensorRef& from, const TensorRef& to);

// Rows along `axis` of the first inputs and the output.
struct UnaryRows : RowWalk<2> {
  explicit UnaryRows(const BoundCall& call)
      : RowWalk(call, call.inputs[0], call.attrs->i("axis"), {&call.inputs[0], &call.outputs[0]}) {}
};
struct BinaryRows : RowWalk<3> {
  explicit BinaryRows(const BoundCall& call)
      : RowWalk(call, call.inputs[0], call.attrs->i("axis"), {&call.inputs[0], &call.inputs[1], &call.outputs[0]}) {}
};

// ---- pointwise

template <class Operands>
struct WithAlpha : Operands {
  explicit WithAlpha(const BoundCall& call) : Operands(call), alpha(call.attrs->f("alpha")) {}
  double alpha;
};

struct EluScales : Unary {
  explicit EluScales(const BoundCall& call)
      : Unary(call),
        alpha(call.attrs->f("alpha")),
        scale(call.attrs->f("scale")),
        inner(call.attrs->f("input_scale")) {}
  double alpha, scale, inner;
};

struct SoftplusBend : Unary {
  explicit SoftplusBend(const BoundCall& call)
      : Unary(call), beta(call.attrs->f("beta")), threshold(call.attrs->f("threshold")) {}
  double beta, threshold;
};

// Infinite where there is none.
struct Bounds : Unary {
  explicit Bounds(const BoundCall& call);
  double low, high;
};

// Of integers none may be zero.
struct Division : Binary {
  explicit Division(const BoundCall& call) : Binary(call), divisor(positions(call, call.inputs[1])) {}
  Grid<1> divisor;
};

struct Remainder : Division {
  explicit Remainder(const BoundCall& call) : Division(call), dividend_sign(call.attrs->b("fmod", false)) {}
  bool dividend_sign;
};

// ---- made of nothing, or drawn

// `value` where the output is of floating point, else `int_value`.
struct Filling : Mapped<0> {
  explicit Filling(const BoundCall& call);
  double value = 0;
  int64_t int_value = 0;
};

struct Progression : Mapped<0> {
  explicit Progression(const BoundCall& call);
  double start, step;
  int64_t int_start, int_step;
};

inline uint64_t stream_of(const BoundCall& call) { return static_cast<uint64_t>(call.attrs->i("stream")); }

struct Uniform : Mapped<0> {
  explicit Uniform(const BoundCall& call)
      : Mapped(call), stream(stream_of(call)), low(call.attrs->f("low")), width(call.attrs->f("high") - low) {}
  uint64_t stream;
  double low, width;
};

struct Normal : Mapped<0> {
  explicit Normal(const BoundCall& call)
      : Mapped(call), stream(stream_of(call)), mean(call.attrs->f("mean")), scale(call.attrs->f("scale")) {}
  uint64_t stream;
  double mean, scale;
};

struct Chances : Unary {
  explicit Chances(const BoundCall& call) : Unary(call), stream(stream_of(call)) {}
  uint64_t stream;
};

// What stays, and what it is multiplied by.
struct Dropped {
  Dropped(double ratio, DType dtype, uint64_t drawn_from)
      : threshold(dropout_threshold(ratio)),
        stream(drawn_from),
        scale(dtype == DType::kF64 && ratio < 1 ? 1.0 / (1.0 - ratio) : dropout_scale(ratio)) {}
  explicit Dropped(const BoundCall& call) : Dropped(call.attrs->f("ratio"), call.outputs[0].dtype, stream_of(call)) {}
  uint64_t threshold, stream;
  double scale;
};
template <class Operands>
struct Dropping : Operands {
  explicit Dropping(const BoundCall& call) : Operands(call), dropped(call) {}
  Dropped dropped;
};
using DroppedInput = Dropping<Unary>;
using DroppedSum = Dropping<Ternary>;

// ---- reductions and orders along an axis

// The positions of y, and the runs of x that each of them sums up.
struct Reduction {
  explicit Reduction(const BoundCall& call);
  Grid<2> outer;  // x, y
  Grid<1> inner;  // x: a position per run, which has `length` elements `stride` apart
  int64_t count;  // elements per sum
  int64_t length = 1, stride = 0;
};

struct Cumulation : UnaryRows {
  explicit Cumulation(const BoundCall& call) : UnaryRows(call), reverse(call.attrs->b("reverse", false)) {}
  bool reverse;
};

// The first k of each row of x: their values and their indices. Sort takes them all.
struct Ranking : RowWalk<3> {
  Ranking(const BoundCall& call, bool is_descending)
      : RowWalk(call, call.inputs[0], call.attrs->i("axis"),
                {&call.inputs[0], &output_or_absent(call, 0), &output_or_absent(call, 1)}),
        descending(is_descending) {}
  bool descending;
};
struct TopRanking : Ranking {
  explicit TopRanking(const BoundCall& call)
      : Ranking(call, call.attrs->b("largest")), k(call.attrs->i("k")), sorted(call.attrs->b("sorted", true)) {}
  int64_t k;
  bool sorted;
};
struct SortRanking : Ranking {
  explicit SortRanking(const BoundCall& call) : Ranking(call, call.attrs->b("descending")) {}
};

// The values and the results in row-major order; a row of ascending numbers serves `values_each` of them.
struct SortedRows {
  explicit SortedRows(const BoundCall& call);
  Grid<2> elements;
  Grid<1> rows;
  int64_t values_each, size, stride;
  bool right;
};

// ---- losses

struct LossTerms {
  explicit LossTerms(const BoundCall& call)
      : ignore_index(call.attrs->i("ignore_index")),
        smoothing(call.attrs->f("label_smoothing")),
        mean(call.attrs->s("reduction") == "mean"),
        none(call.attrs->s("reduction") == "none") {}
  int64_t ignore_index;
  double smoothing;
  bool mean, none;
};

// One row per label.
struct LossRows {
  LossRows(const TensorRef& logits, const TensorRef& labels, const TensorRef& log_sum_exp, const TensorRef& loss,
           const TensorRef& dlogits);
  Grid<5> grid;  // logits, labels, log-sum-exp, per-row loss (or its gradient), dlogits
  int64_t classes, stride, out_stride;
};
struct RowsLoss : LossTerms {
  explicit RowsLoss(const BoundCall& call)
      : LossTerms(call),
        rows(call.inputs[0], call.inputs[1], output_or_absent(call, 1), output_or_absent(call, 0), kAbsent) {}
  LossRows rows;
};
struct RowsLossGrad : LossTerms {
  explicit RowsLossGrad(const BoundCall& call)
      : LossTerms(call),
        rows(call.inputs[1], call.inputs[2], call.inputs[3], none ? call.inputs[0] : kAbsent, call.outputs[0]) {}
  LossRows rows;
};

// ---- products

// MatMul has none of these attributes, FusedMatMul no beta.
struct Product {
  explicit Product(const BoundCall& call);
  bool transpose_a, transpose_b;
  double alpha, beta;
  // Rows of y in all batches, [0, rows) of each. Offsets: a, b, y.
  Grid<3> outputs;
  int64_t rows, inner, cols;
  int64_t a_step, b_step, b_col_step, y_step;  // along inner, inner, cols, cols
  int64_t c_row_step, c_step;                  // c broadcast to y, which has two dims then
};

struct Transposition {
  explicit Transposition(const BoundCall& call) : transposed(call.attrs->b("transB")) {}
  bool transposed;
};

struct AttentionTerms {
  AttentionTerms(const BoundCall& call, size_t q, size_t mask);  // the bias follows the mask
  explicit AttentionTerms(const BoundCall& call) : AttentionTerms(call, 0, 3) {}
  int64_t row_doubles() const { return keys + value_width + 1; }  // of a task

  int64_t batches, heads, queries, keys, width, value_width, kv_heads, heads_per_kv;
  Strides mask, bias;  // over [B, H, S, T]
  bool causal;
  double scale;
  Dropped dropped;
};
struct AttentionGradTerms : AttentionTerms {
  explicit AttentionGradTerms(const BoundCall& call);
  // The scores of a query, the row of dq, the sums of dk and dv.
  int64_t task_doubles() const { return keys + width + keys * (width + value_width) + 1; }

  Grid<1> dmask;
  int64_t dmask_numel;
  Strides dmask_sums;  // of a row-major sum of the mask's shape, over [B, H, S, T]
};

struct Rotation : RowWalk<4> {
  explicit Rotation(const BoundCall& call)
      : RowWalk(call, call.inputs[0], call.inputs[0].rank - 1,
                {&call.inputs[0], &call.inputs[1], &call.inputs[2], &call.outputs[0]}),
        transposed(call.attrs->b("transposed", false)),
        interleaved(call.attrs->b("interleaved", false)) {}
  bool transposed, interleaved;
};

}  // namespace lowtide::reference
