// Tensors out of nothing: constants, ranges, random numbers.
#include "ops/builder.h"
#include "ops/inference.h"
#include "ops/rules.h"

namespace lowtide {

static void check_constant_value(const InferArgs& args) {
  const DType dtype = args.attrs.t("dtype");
  LT_INFER_CHECK(args, dtype != DType::kContext, "no constant has dtype ctx");
  const std::string_view expected = is_float(dtype) ? "value" : "int_value";
  LT_INFER_CHECK(args, args.attrs.has(expected), "a constant of dtype ", name(dtype), " needs attribute ", expected);
}

static TensorType of_shape_attr(const InferArgs& args) {
  const Shape& shape = args.attrs.ints("shape");
  for (const Dim& size : shape)
    LT_INFER_CHECK(args, !size.is_constant() || size.constant() >= 0, "shape ", to_string(shape),
                   " has a negative size");
  return {args.attrs.t("dtype"), shape};
}

std::vector<TensorType> infer_constant(const InferArgs& args) {
  check_constant_value(args);
  return {{args.attrs.t("dtype"), {}}};
}

std::vector<TensorType> infer_constant_of_shape(const InferArgs& args) {
  check_constant_value(args);
  return {of_shape_attr(args)};
}

// y[i] = start + i*step
std::vector<TensorType> infer_range(const InferArgs& args) {
  const DType dtype = args.attrs.t("dtype");
  const Dim& count = args.attrs.dim("numel");
  LT_INFER_CHECK(args, is_float(dtype) || is_integer(dtype), "no range has dtype ", name(dtype));
  for (std::string_view attr : {"start", "step"}) {
    const std::string needed = is_float(dtype) ? std::string(attr) : concat("int_", attr);
    LT_INFER_CHECK(args, args.attrs.has(needed), "a range of dtype ", name(dtype), " needs attribute ", needed);
  }
  LT_INFER_CHECK(args, !count.is_constant() || count.constant() >= 0, "numel is ", to_string(count));
  return {{dtype, {count}}};
}

std::vector<TensorType> infer_random(const InferArgs& args) {
  LT_INFER_CHECK(args, is_float(args.attrs.t("dtype")), "draws floating numbers, not ", name(args.attrs.t("dtype")));
  return {of_shape_attr(args)};
}

std::vector<TensorType> infer_dropout(const InferArgs& args) {
  const TensorType& x = args.in(0);
  if (!args.has(1)) return infer_same(args);
  const TensorType& rows = args.in(1);
  LT_INFER_CHECK(args,
                 rows.dtype == DType::kI64 && rows.shape.size() == 1 && !x.shape.empty() &&
                     shapes_agree(rows.shape, {x.shape[0]}, args.ranges),
                 "the rows are ", to_string(rows), ", of x ", to_string(x));
  return infer_same(args);
}

// The mask is drawn again: nothing is kept.
void grad_dropout(GradContext& c) {
  std::vector<ValueId> operands{c.dy()};
  if (c.in(1)) operands.push_back(c.in(1));
  c.set(0, c.b().op(Op::kDropoutGrad, operands, c.attrs()));
}

}  // namespace lowtide
