// Pointwise ops: broadcasting inference. Their gradients: activations.cpp, arithmetic.cpp.
#include "ops/builder.h"
#include "ops/inference.h"

namespace lowtide {

// Numbers of any kind, floating only, integers, bool, or whatever there is.
enum class Domain { kAny, kNumber, kFloat, kInteger, kBool };

static Domain domain_of(Op op) {
  switch (op) {
    case Op::kIdentity:
    case Op::kDetach:
    case Op::kCopy:
    case Op::kFlip:
    case Op::kRoll:
    case Op::kTrilu:
    case Op::kEqual:
    case Op::kNotEqual:
    case Op::kLess:
    case Op::kLessOrEqual:
    case Op::kGreater:
    case Op::kGreaterOrEqual: return Domain::kAny;
    case Op::kNot:
    case Op::kAnd:
    case Op::kOr:
    case Op::kXor: return Domain::kBool;
    case Op::kBitwiseNot:
    case Op::kBitwiseAnd:
    case Op::kBitwiseOr:
    case Op::kBitwiseXor: return Domain::kInteger;
    case Op::kAbs:
    case Op::kNeg:
    case Op::kRelu:
    case Op::kClip:
    case Op::kFloor:
    case Op::kCeil:
    case Op::kRound:
    case Op::kTrunc:
    case Op::kSign:
    case Op::kIsNaN:
    case Op::kIsInf:
    case Op::kAdd:
    case Op::kSub:
    case Op::kMul:
    case Op::kDiv:
    case Op::kFloorDiv:
    case Op::kMod:
    case Op::kPow:
    case Op::kMax:
    case Op::kMin:
    case Op::kCumSum: return Domain::kNumber;
    default: return Domain::kFloat;
  }
}

static void check_domain(const InferArgs& args, size_t input) {
  const DType dtype = args.in(input).dtype;
  const auto [fits, expected] = [&]() -> std::pair<bool, std::string_view> {
    switch (domain_of(args.op)) {
      case Domain::kAny: return {dtype != DType::kContext, "a tensor"};
      case Domain::kNumber: return {is_float(dtype) || is_integer(dtype), "numbers"};
      case Domain::kFloat: return {is_float(dtype), "floating"};
      case Domain::kInteger: return {is_integer(dtype), "integers"};
      case Domain::kBool: return {dtype == DType::kBool, "bool"};
    }
    return {false, ""};
  }();
  LT_INFER_CHECK(args, fits, "operand ", input, " must be ", expected, ", is ", to_string(args.in(input)));
}

static void check_axes(const InferArgs& args) {
  const int64_t dims = rank(args.in(0));
  if (args.attrs.has("axis")) axis_attr(args, "axis", dims);
  if (args.op == Op::kFlip) axes_attr(args, "axes", dims);
  if (args.op == Op::kTrilu) check_rank_at_least(args, 0, 2);
  if (args.op == Op::kRoll) {
    const std::vector<int64_t> axes = constants_attr(args, "axes");
    LT_INFER_CHECK(args, axes.size() == args.attrs.ints("shifts").size(), "axes and shifts differ in number");
    for (int64_t axis : axes)
      LT_INFER_CHECK(args, axis >= 0 && axis < dims, "axis ", axis, " is none of ", to_string(args.in(0)));
  }
}

std::vector<TensorType> infer_same(const InferArgs& args) {
  check_domain(args, 0);
  check_axes(args);
  if (args.attrs.has("ratio")) {
    const double ratio = args.attrs.f("ratio");
    LT_INFER_CHECK(args, ratio >= 0 && ratio <= 1, "ratio must lie in [0, 1], is ", ratio);
  }
  return {args.in(0)};
}

std::vector<TensorType> infer_overwrite(const InferArgs& args) {
  check_same_dtype(args, 0, 1);
  check_shape(args, 1, "x", args.in(0).shape);
  return {args.in(0)};
}

std::vector<TensorType> infer_cast(const InferArgs& args) {
  LT_INFER_CHECK(args, args.attrs.t("to") != DType::kContext && args.in(0).dtype != DType::kContext,
                 "cannot cast contexts");
  return {{args.attrs.t("to"), args.in(0).shape}};
}

std::vector<TensorType> infer_predicate(const InferArgs& args) {
  check_domain(args, 0);
  return {{DType::kBool, args.in(0).shape}};
}

static Shape broadcast_operands(const InferArgs& args) {
  check_domain(args, 0);
  check_same_dtype(args, 0, 1);
  return broadcast(args, args.in(0).shape, args.in(1).shape);
}

std::vector<TensorType> infer_binary(const InferArgs& args) {
  const Shape shape = broadcast_operands(args);
  // Gradients of activations and rows: both operands have the result's shape.
  if (info(args.op).category == OpCategory::kRow) {
    axis_attr(args, "axis", rank(args.in(0)));
    check_shape(args, 1, "y", args.in(0).shape);
  }
  return {{args.in(0).dtype, shape}};
}

std::vector<TensorType> infer_compare(const InferArgs& args) { return {{DType::kBool, broadcast_operands(args)}}; }

// condition ? x : y
std::vector<TensorType> infer_where(const InferArgs& args) {
  LT_INFER_CHECK(args, args.in(0).dtype == DType::kBool, "the condition must be bool, is ", to_string(args.in(0)));
  check_same_dtype(args, 1, 2);
  return {{args.in(1).dtype, broadcast(args, args.in(0).shape, broadcast(args, args.in(1).shape, args.in(2).shape))}};
}

// y = x*cos + rotate_half(x)*sin
std::vector<TensorType> infer_rotary(const InferArgs& args) {
  const TensorType& x = args.in(0);
  check_float(args, 0);
  check_rank_at_least(args, 0, 1);
  const Dim& width = x.shape.back();
  LT_INFER_CHECK(args, !width.is_constant() || width.constant() % 2 == 0, "the last dim must be even: ", to_string(x));
  for (size_t i : {1, 2}) {
    check_same_dtype(args, 0, i);
    LT_INFER_CHECK(args, broadcasts_to(args.in(i).shape, x.shape, args.ranges), to_string(args.in(i)),
                   " does not broadcast to ", to_string(x));
  }
  return {x};
}

}  // namespace lowtide
