#include "ops/example_inputs.h"

namespace lowtide::examples {

static void add_one_operand(List& list) {
  const Sizes shape{2, 5};
  for (Op op : {Op::kIdentity, Op::kDetach, Op::kCopy, Op::kNeg, Op::kExp, Op::kExpm1, Op::kSin, Op::kCos, Op::kTan,
                Op::kAtan, Op::kTanh, Op::kSigmoid, Op::kErf, Op::kSwish, Op::kMish, Op::kIsNaN, Op::kIsInf})
    list.add(op, "", {real(shape)});
  for (Op op : {Op::kLog, Op::kLog1p, Op::kSqrt, Op::kRsqrt, Op::kReciprocal, Op::kLgamma, Op::kDigamma})
    list.add(op, "", {real(shape, 0.3, 2)});
  for (Op op : {Op::kLgamma, Op::kDigamma}) list.add(op, "negative", {real(shape, -2.8, -2.2)});
  list.add(Op::kTrigamma, "", {fixed(shape, 0.3, 2)});
  list.add(Op::kTrigamma, "negative", {fixed(shape, -2.8, -2.2)});
  list.add(Op::kReciprocal, "negative", {real(shape, -2, -0.3)});
  for (Op op : {Op::kAbs, Op::kRelu, Op::kSign}) list.add(op, "", {smooth_but_at({0}, shape)});
  for (Op op : {Op::kFloor, Op::kCeil, Op::kTrunc}) list.add(op, "", {smooth_but_at({-2, -1, 0, 1, 2}, shape)});
  list.add(Op::kRound, "", {smooth_but_at({-1.5, -0.5, 0.5, 1.5}, shape)});
  list.add(Op::kLeakyRelu, "", {smooth_but_at({0}, shape)}, {{"alpha", 0.1}});
  list.add(Op::kLeakyRelu, "negative alpha", {smooth_but_at({0}, shape)}, {{"alpha", -0.5}});
  list.add(Op::kElu, "", {smooth_but_at({0}, shape)}, {{"alpha", 1.0}, {"scale", 1.0}, {"input_scale", 1.0}});
  list.add(Op::kElu, "selu", {smooth_but_at({0}, shape)}, {{"alpha", 1.6733}, {"scale", 1.0507}, {"input_scale", 1.0}});
  list.add(Op::kElu, "celu", {smooth_but_at({0}, shape)}, {{"alpha", 0.7}, {"scale", 1.0}, {"input_scale", 1.0 / 0.7}});
  list.add(Op::kSoftplus, "", {real(shape)}, {{"beta", 1.0}, {"threshold", 20.0}});
  list.add(Op::kSoftplus, "without one", {real(shape)}, {{"beta", 1.0}, {"threshold", 40.0}});
  list.add(Op::kSoftplus, "beyond threshold", {smooth_but_at({0.5}, shape)}, {{"beta", 2.0}, {"threshold", 1.0}});
  list.add(Op::kGelu, "", {real(shape, -3, 3)});
  list.add(Op::kFastGelu, "", {real(shape, -3, 3)});
  list.add(Op::kHuber, "", {real(shape, -3, 3)}, {{"alpha", 0.75}});
  list.add(Op::kQuickGelu, "", {real(shape, -3, 3)}, {{"alpha", 1.702}});
  list.add(Op::kHardSigmoid, "", {smooth_but_at({-3, 3}, shape, -5, 5)});
  list.add(Op::kHardSwish, "", {smooth_but_at({-3, 3}, shape, -5, 5)});
  list.add(Op::kClip, "both", {smooth_but_at({-0.5, 1}, shape)}, {{"min", -0.5}, {"max", 1.0}});
  list.add(Op::kClip, "min", {smooth_but_at({-0.5}, shape)}, {{"min", -0.5}});
  list.add(Op::kClip, "max", {smooth_but_at({1}, shape)}, {{"max", 1.0}});
  list.add(Op::kClip, "neither", {real(shape)});
  list.add(Op::kCast, "to bool", {fixed(shape)}, {{"to", DType::kBool}});
  list.add(Op::kCast, "from integers", {integers(shape, -5, 5)}, {{"to", DType::kF32}});
  list.add(Op::kCast, "to f64", {real(shape)}, {{"to", DType::kF64}});
  list.add(Op::kNot, "", {flags(shape)});
  list.add(Op::kBitwiseNot, "", {integers(shape, -9, 9)});
}

static void add_two_operands(List& list) {
  for (Op op : {Op::kAdd, Op::kSub, Op::kMul}) {
    list.add(op, "", {real({2, 3}), real({2, 3})});
    list.add(op, "broadcast", {real({2, 1, 3}), real({4, 1})});
    list.add(op, "scalar", {real({2, 3}), real({})});
    list.add(op, "growing", {real({3}), real({2, 3})});
    list.add(op, "integers", {integers({2, 3}, -5, 5), integers({3}, -5, 5)});
  }
  list.add(Op::kOverwrite, "", {real({2, 3}), real({2, 3})}, {{"passes", false}});
  list.add(Op::kDiv, "", {real({2, 3}), real({2, 3}, 0.5, 2)});
  list.add(Op::kDiv, "broadcast", {real({2, 1, 3}), real({4, 1}, -2, -0.5)});
  list.add(Op::kDiv, "by a number", {real({2, 3}), number(3)});
  list.add(Op::kDiv, "integers", {integers({2, 3}, -9, 9), integers({3}, 1, 4)});
  list.add(Op::kFloorDiv, "", {real({2, 3}, 0, 5), real({3}, 0.5, 2)});
  list.add(Op::kFloorDiv, "integers", {integers({2, 3}, -9, 9), integers({3}, 1, 4)});
  list.add(Op::kMod, "", {real({2, 3}, -5, 5), real({3}, 0.7, 2)});
  list.add(Op::kMod, "fmod", {real({2, 3}, -5, 5), real({3}, 0.7, 2)}, {{"fmod", true}});
  list.add(Op::kMod, "integers", {integers({2, 3}, -9, 9), integers({3}, 1, 4)});
  list.add(Op::kPow, "", {real({2, 3}, 0.3, 2), real({3}, -2, 2)});
  for (double exponent : {-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 2.5})
    list.add(Op::kPow, concat("by ", exponent), {real({2, 3}, 0.3, 2), number(exponent)});
  list.add(Op::kPow, "of negatives", {real({2, 3}, -2, -0.3), number(3)});
  for (Op op : {Op::kMax, Op::kMin}) {
    list.add(op, "", {real({2, 3}), real({2, 3})});
    list.add(op, "broadcast", {real({2, 1, 3}), real({4, 1})});
  }
  list.add(Op::kAtan2, "", {real({2, 3}, 0.3, 2), real({2, 3})});
  list.add(Op::kAtan2, "broadcast", {real({2, 1}, -2, -0.3), real({3}, 0.3, 1)});
  for (Op op : {Op::kAnd, Op::kOr, Op::kXor}) list.add(op, "broadcast", {flags({2, 3}), flags({3})});
  for (Op op : {Op::kBitwiseAnd, Op::kBitwiseOr, Op::kBitwiseXor})
    list.add(op, "broadcast", {integers({2, 3}, -9, 9), integers({3}, -9, 9)});
  for (Op op : {Op::kEqual, Op::kNotEqual, Op::kLess, Op::kLessOrEqual, Op::kGreater, Op::kGreaterOrEqual}) {
    list.add(op, "", {real({2, 3}), real({3})});
    list.add(op, "integers", {integers({2, 3}, 0, 2), integers({2, 3}, 0, 2)});
  }
  list.add(Op::kWhere, "", {flags({2, 3}), real({2, 3}), real({2, 3})});
  list.add(Op::kWhere, "broadcast", {flags({2, 1}), real({3}), real({})});
  list.add(Op::kWhere, "growing", {flags({2, 3}), real({3}), number(0)});
}

static void add_creation_and_random(List& list) {
  const std::vector<Dim> shape{2, 3};
  list.add(Op::kConstant, "real", {}, {{"dtype", DType::kF32}, {"value", 1.5}});
  list.add(Op::kConstant, "integer", {}, {{"dtype", DType::kI64}, {"int_value", 7}});
  list.add(Op::kConstantOfShape, "real", {}, {{"dtype", DType::kF32}, {"shape", shape}, {"value", 1.5}});
  list.add(Op::kConstantOfShape, "bool", {}, {{"dtype", DType::kBool}, {"shape", shape}, {"int_value", 1}});
  list.add(Op::kRange, "real", {}, {{"dtype", DType::kF32}, {"numel", 5}, {"start", 1.0}, {"step", 0.5}});
  list.add(Op::kRange, "integer", {}, {{"dtype", DType::kI64}, {"numel", 5}, {"int_start", 4}, {"int_step", -1}});
  list.add(Op::kRandomUniform, "", {},
           {{"dtype", DType::kF32}, {"shape", shape}, {"low", -1.0}, {"high", 2.0}, {"stream", 1}});
  list.add(Op::kRandomNormal, "", {},
           {{"dtype", DType::kF32}, {"shape", shape}, {"mean", 1.0}, {"scale", 2.0}, {"stream", 1}});
  list.add(Op::kBernoulli, "", {fixed({2, 3}, 0, 1)}, {{"stream", 1}});
  list.add(Op::kDropout, "", {real({4, 5})}, {{"ratio", 0.3}, {"stream", 1}});
  list.add(Op::kDropout, "nothing", {real({4, 5})}, {{"ratio", 0.0}, {"stream", 1}});
  list.add(Op::kDropout, "some rows", {real({3, 5}), unique_indices({3}, 8)}, {{"ratio", 0.3}, {"stream", 1}});
  list.add(Op::kDropout, "some rows of whole groups", {real({2, 64}), unique_indices({2}, 3)},
           {{"ratio", 0.3}, {"stream", 1}});
  list.add(Op::kDropout, "everything", {real({4, 5})}, {{"ratio", 1.0}, {"stream", 1}});
}

static void add_functions_of_sums(List& list) {
  for (Op op : {Op::kBiasGelu, Op::kFastGelu}) {
    list.add(op, "of a sum", {real({2, 3, 5}, -3, 3), real({5})});
    list.add(op, "of long rows", {real({2, 37}, -3, 3), fixed({37})});
    list.add(op, "of an image", {real({2, 3, 2, 4}, -3, 3), real({4})});
  }
  const auto dropout = [](double ratio) { return Attrs{{"ratio", ratio}, {"stream", 1}}; };
  list.add(Op::kBiasDropout, "", {real({4, 5}), real({5})}, dropout(0.3));
  list.add(Op::kBiasDropout, "residual", {real({3, 7, 11}), real({11}), real({3, 7, 11})}, dropout(0.3));
  list.add(Op::kBiasDropout, "long rows", {real({2, 70}), real({70}), real({2, 70})}, dropout(0.5));
  list.add(Op::kBiasDropout, "nothing", {real({4, 5}), real({5}), real({4, 5})}, dropout(0.0));
  list.add(Op::kBiasDropout, "everything", {real({4, 5}), real({5}), real({4, 5})}, dropout(1.0));
}

void add_pointwise(List& list) {
  add_one_operand(list);
  add_two_operands(list);
  add_creation_and_random(list);
  add_functions_of_sums(list);
  const auto rotary = [](bool transposed) { return Attrs{{"transposed", transposed}}; };
  list.add(Op::kRotaryEmbedding, "", {real({2, 2, 3, 4}), real({3, 4}), real({3, 4})}, rotary(false));
  list.add(Op::kRotaryEmbedding, "per batch", {real({2, 2, 3, 4}), real({2, 1, 3, 4}), real({2, 1, 3, 4})});
  const auto interleaved = [](bool transposed) { return Attrs{{"interleaved", true}, {"transposed", transposed}}; };
  list.add(Op::kRotaryEmbedding, "interleaved", {real({2, 2, 3, 4}), real({3, 4}), real({3, 4})}, interleaved(false));
  list.add(Op::kRotaryEmbedding, "interleaved, transposed", {real({2, 3, 4}), real({3, 4}), real({3, 4})},
           interleaved(true));
  list.add(Op::kRotaryEmbedding, "transposed", {real({2, 3, 4}), real({3, 4}), real({3, 4})}, rotary(true));
}

}  // namespace lowtide::examples
