// What the reference kernels are prepared to: attributes, and what follows from them and from the operands' sizes. None
// holds an operand: addresses are known at the run.
#pragma once

#include "kernels/kernel.h"
#include "kernels/philox.h"
#include "kernels/walk.h"

namespace lowtide::reference {

struct Axis {
  explicit Axis(const BoundCall& call) : axis(call.attrs->i("axis")) {}
  int64_t axis;
};

struct Alpha {
  explicit Alpha(const BoundCall& call) : alpha(call.attrs->f("alpha")) {}
  double alpha;
};

// ---- pointwise

struct EluScales {
  explicit EluScales(const BoundCall& call)
      : alpha(call.attrs->f("alpha")), scale(call.attrs->f("scale")), inner(call.attrs->f("input_scale")) {}
  double alpha, scale, inner;
};

struct SoftplusBend {
  explicit SoftplusBend(const BoundCall& call) : beta(call.attrs->f("beta")), threshold(call.attrs->f("threshold")) {}
  double beta, threshold;
};

// Infinite where there is none.
struct Bounds {
  explicit Bounds(const BoundCall& call);
  double low, high;
};

struct Remainder {
  explicit Remainder(const BoundCall& call) : dividend_sign(call.attrs->b("fmod", false)) {}
  bool dividend_sign;
};

// ---- made of nothing, or drawn

// `value` where the output is of floating point, else `int_value`.
struct Filling {
  explicit Filling(const BoundCall& call);
  double value = 0;
  int64_t int_value = 0;
};

struct Progression {
  explicit Progression(const BoundCall& call);
  double start, step;
  int64_t int_start, int_step;
};

struct Stream {
  explicit Stream(const BoundCall& call) : stream(static_cast<uint64_t>(call.attrs->i("stream"))) {}
  uint64_t stream;
};

struct Uniform : Stream {
  explicit Uniform(const BoundCall& call)
      : Stream(call), low(call.attrs->f("low")), width(call.attrs->f("high") - low) {}
  double low, width;
};

struct Normal : Stream {
  explicit Normal(const BoundCall& call) : Stream(call), mean(call.attrs->f("mean")), scale(call.attrs->f("scale")) {}
  double mean, scale;
};

// What stays, and what it is multiplied by.
struct Dropped {
  Dropped(double ratio, DType dtype, uint64_t drawn_from)
      : threshold(dropout_threshold(ratio)),
        stream(drawn_from),
        scale(dtype == DType::kF64 && ratio < 1 ? 1.0 / (1.0 - ratio) : dropout_scale(ratio)) {}
  explicit Dropped(const BoundCall& call)
      : Dropped(call.attrs->f("ratio"), call.outputs[0].dtype, static_cast<uint64_t>(call.attrs->i("stream"))) {}
  uint64_t threshold, stream;
  double scale;
};

// ---- reductions and orders along an axis

// The positions of y, and the runs of x that each of them sums up.
struct Reduction {
  explicit Reduction(const BoundCall& call);
  Grid<2> outer;  // x, y
  Grid<1> inner;  // x: a position per run, which has `length` elements `stride` apart
  int64_t count;  // elements per sum
  int64_t length = 1, stride = 0;
};

struct Cumulation : Axis {
  explicit Cumulation(const BoundCall& call) : Axis(call), reverse(call.attrs->b("reverse", false)) {}
  bool reverse;
};

// The first k of each row of `size` elements. Sort takes them all.
struct Ranking {
  Ranking(const BoundCall& call, bool is_descending)
      : axis(call.inputs[0].rank == 0 ? 0 : call.attrs->i("axis")),
        size(call.inputs[0].rank == 0 ? 1 : call.inputs[0].sizes[axis]),
        k(size),
        descending(is_descending) {}
  int64_t axis, size, k;
  bool descending;
};
struct TopRanking : Ranking {
  explicit TopRanking(const BoundCall& call) : Ranking(call, call.attrs->b("largest")) { k = call.attrs->i("k"); }
};
struct SortRanking : Ranking {
  explicit SortRanking(const BoundCall& call) : Ranking(call, call.attrs->b("descending")) {}
};

// ---- norms and losses

struct Norm : Axis {
  explicit Norm(const BoundCall& call) : Axis(call), epsilon(call.attrs->f("epsilon")) {}
  double epsilon;
};

struct Groups {
  explicit Groups(const BoundCall& call) : groups(call.attrs->i("num_groups")) {}
  int64_t groups;
};

struct GroupNorm : Groups {
  explicit GroupNorm(const BoundCall& call) : Groups(call), epsilon(call.attrs->f("epsilon")) {}
  double epsilon;
};

struct BatchNorm {
  explicit BatchNorm(const BoundCall& call) : epsilon(call.attrs->f("epsilon")), momentum(call.attrs->f("momentum")) {}
  double epsilon, momentum;
};

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

// ---- products

// MatMul has none of these attributes, FusedMatMul no beta.
struct Product {
  explicit Product(const BoundCall& call);
  bool transpose_a, transpose_b;
  double alpha, beta;
};

struct AttentionTerms {
  explicit AttentionTerms(const BoundCall& call, size_t q = 0);
  bool causal;
  double scale;
  Dropped dropped;
};
struct AttentionGradTerms : AttentionTerms {
  explicit AttentionGradTerms(const BoundCall& call) : AttentionTerms(call, 1) {}
};

struct Rotation {
  explicit Rotation(const BoundCall& call) : transposed(call.attrs->b("transposed", false)) {}
  bool transposed;
};

// ---- moved elements

// By axis; `mode` by its first letter.
struct Padding {
  explicit Padding(const BoundCall& call);
  int64_t before[kMaxRank];
  char mode;
  double fill;
};

struct Repeats : Axis {
  explicit Repeats(const BoundCall& call) : Axis(call), repeats(call.attrs->i("repeats")) {}
  int64_t repeats;
};

struct Flipped {
  explicit Flipped(const BoundCall& call);
  bool axes[kMaxRank] = {};
};

struct Shifts {
  explicit Shifts(const BoundCall& call);
  int64_t by_axis[kMaxRank] = {};
};

struct Triangle {
  explicit Triangle(const BoundCall& call) : upper(call.attrs->b("upper")), k(call.attrs->i("k")) {}
  bool upper;
  int64_t k;
};

struct SlicePlace : Axis {
  explicit SlicePlace(const BoundCall& call) : Axis(call), start(call.attrs->i("start")), step(call.attrs->i("step")) {}
  int64_t start, step;
};

// The row that gets no gradient; -1: none.
struct GatherGradRows : Axis {
  explicit GatherGradRows(const BoundCall& call);
  int64_t padding;
};

// How an update joins what is there: none, add, mul, max or min.
enum class Joining : uint8_t { kReplace, kAdd, kMultiply, kMaximum, kMinimum };
struct Scattering {
  explicit Scattering(const BoundCall& call);
  Joining joining;
};
struct AxisScattering : Scattering {
  explicit AxisScattering(const BoundCall& call) : Scattering(call), axis(call.attrs->i("axis")) {}
  int64_t axis;
};

struct BitFields {
  explicit BitFields(const BoundCall& call)
      : bits(call.attrs->i("bits")),
        low(static_cast<uint64_t>(call.attrs->i("low"))),
        mask((uint64_t{1} << bits) - 1) {}
  int64_t bits;
  uint64_t low, mask;
};

// ---- images

constexpr int kSpatial = 3;

// A convolution's, over three spatial dims: missing ones lie in front.
struct ConvWindow {
  explicit ConvWindow(const BoundCall& call);
  // Input position that tap k of output position o reads, perhaps outside.
  int64_t source(int dim, int64_t o, int64_t k) const { return o * strides[dim] - pads[dim] + k * dilations[dim]; }

  int64_t strides[kSpatial] = {1, 1, 1}, pads[kSpatial] = {}, dilations[kSpatial] = {1, 1, 1};
  int64_t group;
};

// A pool's, over the spatial dims that there are.
struct PoolWindow {
  explicit PoolWindow(const BoundCall& call);
  int64_t kernel[kMaxRank], strides[kMaxRank], pads[kMaxRank], end_pads[kMaxRank], dilations[kMaxRank];
  int64_t taps = 1;
  bool include_pad;  // of an average
};

struct Resizing {
  explicit Resizing(const BoundCall& call);
  bool nearest, align_corners;
};

}  // namespace lowtide::reference
