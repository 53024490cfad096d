// Pointwise arithmetic: operands are cast to the dtype that PyTorch computes in, results to the exporter's.
#include <cmath>
#include <limits>

#include "lower/targets.h"

namespace lowtide {

// One operand, computed in the output's dtype (integers become floats where PyTorch does so).
bool lower_unary(Call& c) {
  if (c.dtype() == DType::kBool) return false;  // sign
  return c.result(c.b.op(c.op(), {c.operand("self", c.dtype())}));
}

// Rounding of integers changes nothing.
bool lower_rounding(Call& c) {
  const ValueId x = c.tensor("self");
  if (!is_float(c.b.dtype(x))) return c.result(x);
  if (c.op() == Op::kRound && c.integer("decimals", 0) != 0) return false;
  return lower_unary(c);
}

bool lower_square(Call& c) {
  const ValueId x = c.operand("self", c.dtype());
  return c.result(c.b.mul(x, x));
}

bool lower_frac(Call& c) {
  const ValueId x = c.tensor("self");
  return c.result(c.b.sub(x, c.b.op(Op::kTrunc, {x})));
}

bool lower_exp2(Call& c) {
  const ValueId x = c.operand("self", opmath(c.dtype()));
  return c.result(c.b.op(Op::kExp, {c.b.mul(x, std::log(2.0))}));
}

// log2, log10: the natural logarithm over the base's.
static bool log_of_base(Call& c, double base) {
  const ValueId x = c.b.op(Op::kLog, {c.operand("self", opmath(c.dtype()))});
  return c.result(c.b.div(x, c.b.scalar_like(std::log(base), x)));
}
bool lower_log2(Call& c) { return log_of_base(c, 2.0); }
bool lower_log10(Call& c) { return log_of_base(c, 10.0); }

bool lower_erfc(Call& c) {
  const ValueId x = c.b.op(Op::kErf, {c.operand("self", opmath(c.dtype()))});
  return c.result(c.b.sub(c.b.scalar_like(1, x), x));
}

// ---- two operands

bool lower_binary(Call& c) {
  const DType dtype = c.common_dtype({"self", "other"});
  return c.result(c.b.op(c.op(), {c.operand("self", dtype), c.operand("other", dtype)}));
}

// Op on bool operands has a logical counterpart.
static Op logical(Op op, DType dtype) {
  if (dtype != DType::kBool) return op;
  switch (op) {
    case Op::kAdd:
    case Op::kMax:
    case Op::kBitwiseOr: return Op::kOr;
    case Op::kMul:
    case Op::kMin:
    case Op::kBitwiseAnd: return Op::kAnd;
    case Op::kBitwiseXor: return Op::kXor;
    default: return op;
  }
}

// What PyTorch's add, sub and rsub multiply their second operand by, rounded to `dtype` as there; invalid where it
// is 1.
static ValueId alpha_of(Call& c, DType dtype) {
  if (c.is_tensor("alpha")) return c.operand("alpha", dtype);
  if (!c.has("alpha")) return {};
  const Number alpha = c.number("alpha");
  const Dim* dim = std::get_if<Dim>(&alpha);
  if ((dim == nullptr || dim->is_constant()) && to_double(alpha) == 1) return {};
  return c.full({}, alpha, dtype);
}

// Of 16 bits the product is not rounded.
static bool lower_sum(Call& c, Op op, std::string_view first, std::string_view second) {
  const DType dtype = c.common_dtype({first, second});
  ValueId x = c.operand(first, dtype), y = c.operand(second, dtype);
  if (const ValueId alpha = alpha_of(c, dtype)) {
    const auto widened = [&](ValueId value) { return c.b.cast(value, opmath(dtype)); };
    x = widened(x);
    y = c.b.op(logical(Op::kMul, dtype), {widened(y), widened(alpha)});
  }
  return c.result(c.b.op(logical(op, dtype), {x, y}));
}
bool lower_add(Call& c) { return lower_sum(c, c.op(), "self", "other"); }
bool lower_rsub(Call& c) { return lower_sum(c, Op::kSub, "other", "self"); }

// PyTorch multiplies and divides 16 bits by the number that a 0-d tensor holds, or that a size is, as it is: not
// rounded to 16 bits before. Of numbers that the graph knows passes/exact_factors.h takes care.
static DType computed_beside(Call& c, DType dtype) {
  if (c.is_tensor("other")) {
    const TensorType& other = c.b.type(c.tensor("other"));
    return other.shape.empty() && other.dtype != dtype ? opmath(dtype) : dtype;
  }
  const Number number = c.number("other");
  const Dim* size = std::get_if<Dim>(&number);
  return size != nullptr && !size->is_constant() ? opmath(dtype) : dtype;
}

bool lower_mul(Call& c) {
  const DType common = c.common_dtype({"self", "other"}), dtype = computed_beside(c, common);
  return c.result(c.b.op(logical(Op::kMul, common), {c.operand("self", dtype), c.operand("other", dtype)}));
}

// maximum, minimum, bitwise ops: on bool they are logical.
bool lower_logical_on_bool(Call& c) {
  const DType dtype = c.common_dtype({"self", "other"});
  return c.result(c.b.op(logical(c.op(), dtype), {c.operand("self", dtype), c.operand("other", dtype)}));
}

bool lower_logical(Call& c) {
  return c.result(c.b.op(c.op(), {c.operand("self", DType::kBool), c.operand("other", DType::kBool)}));
}

bool lower_bitwise_not(Call& c) {
  const ValueId x = c.tensor("self");
  return c.result(c.b.op(c.b.dtype(x) == DType::kBool ? Op::kNot : Op::kBitwiseNot, {x}));
}

bool lower_logical_not(Call& c) { return c.result(c.b.op(Op::kNot, {c.operand("self", DType::kBool)})); }

// True division is floating; with a rounding mode it keeps integers.
bool lower_div(Call& c) {
  const std::string mode = c.text("rounding_mode");
  DType dtype = c.common_dtype({"self", "other"});
  if (mode.empty()) dtype = computed_beside(c, is_float(dtype) ? dtype : c.dtype());
  const ValueId x = c.operand("self", dtype), y = c.operand("other", dtype);
  if (mode == "floor") return c.result(c.b.op(Op::kFloorDiv, {x, y}));
  const ValueId quotient = c.b.div(x, y);
  return c.result(mode == "trunc" && is_float(dtype) ? c.b.op(Op::kTrunc, {quotient}) : quotient);
}

bool lower_fmod(Call& c) {
  const DType dtype = c.common_dtype({"self", "other"});
  return c.result(c.b.op(Op::kMod, {c.operand("self", dtype), c.operand("other", dtype)}, {{"fmod", true}}));
}

bool lower_compare(Call& c) {
  const DType dtype = c.common_dtype({"self", "other"});
  return c.result(c.b.op(c.op(), {c.operand("self", dtype), c.operand("other", dtype)}));
}

bool lower_isnan(Call& c) {
  const ValueId x = c.tensor("self");
  if (is_float(c.b.dtype(x))) return c.result(c.b.op(c.op(), {x}));
  return c.result(c.full(c.shape(), false, DType::kBool));
}

static double largest_finite(DType dtype) {
  switch (dtype) {
    case DType::kBF16: return 0x1.FEp127;
    case DType::kF16: return 65504;
    case DType::kF64: return std::numeric_limits<double>::max();
    default: return std::numeric_limits<float>::max();
  }
}

bool lower_isfinite(Call& c) {
  const ValueId x = c.tensor("self");
  if (!is_float(c.b.dtype(x))) return c.result(c.full(c.shape(), true, DType::kBool));
  const ValueId lost = c.b.op(Op::kOr, {c.b.op(Op::kIsNaN, {x}), c.b.op(Op::kIsInf, {x})});
  return c.result(c.b.op(Op::kNot, {lost}));
}

// What is replaced gets no gradient. Infinities become the largest finite numbers, unless told otherwise.
bool lower_nan_to_num(Call& c) {
  const DType dtype = c.dtype();
  ValueId x = c.operand("self", dtype);
  if (!is_float(dtype)) return c.result(x);
  const double largest = largest_finite(dtype), infinity = std::numeric_limits<double>::infinity();
  const ValueId self = x;
  const auto replace = [&](ValueId where, double number) {
    x = c.b.op(Op::kWhere, {where, c.b.scalar(number, dtype), x});
  };
  replace(c.b.op(Op::kIsNaN, {self}), c.real("nan", 0));
  replace(c.b.op(Op::kEqual, {self, c.b.scalar(infinity, dtype)}), c.real("posinf", largest));
  replace(c.b.op(Op::kEqual, {self, c.b.scalar(-infinity, dtype)}), c.real("neginf", -largest));
  return c.result(x);
}

// ---- powers: small constant exponents are products, as PyTorch's own kernel computes them

// Of 16 bits what is more than one step there, or in its gradient, stays a power, which is rounded once.
static bool constant_power(Call& c, ValueId x, double exponent) {
  Builder& b = c.b;
  if (exponent == 1) return c.result(x);
  if (exponent == 2) return c.result(b.mul(x, x));
  if (is_half(b.dtype(x)) && (exponent == 3 || exponent == -2 || exponent == -0.5)) return false;
  if (exponent == 3) return c.result(b.mul(b.mul(x, x), x));
  if (!is_float(b.dtype(x))) return false;
  if (exponent == 0.5) return c.result(b.op(Op::kSqrt, {x}));
  if (exponent == -0.5) return c.result(b.op(Op::kRsqrt, {x}));
  if (exponent == -1) return c.result(b.op(Op::kReciprocal, {x}));
  if (exponent == -2) return c.result(b.op(Op::kReciprocal, {b.mul(x, x)}));
  return false;
}

bool lower_pow(Call& c) {
  const DType dtype = c.common_dtype({"self", "exponent"});
  const ValueId x = c.operand("self", dtype);
  if (!c.is_tensor("exponent")) {
    const Number exponent = c.number("exponent");
    const Dim* dim = std::get_if<Dim>(&exponent);
    if ((dim == nullptr || dim->is_constant()) && constant_power(c, x, to_double(exponent))) return true;
  }
  return c.result(c.b.op(Op::kPow, {x, c.operand("exponent", dtype)}));
}

// ---- selection and bounds

bool lower_where(Call& c) {
  const DType dtype = c.common_dtype({"self", "other"});
  const ValueId condition = c.operand("condition", DType::kBool);
  return c.result(c.b.op(Op::kWhere, {condition, c.operand("self", dtype), c.operand("other", dtype)}));
}

bool lower_masked_fill(Call& c) {
  const ValueId value = c.operand("value", c.dtype()), mask = c.operand("mask", DType::kBool);
  return c.result(c.b.op(Op::kWhere, {mask, value, c.operand("self", c.dtype())}));
}

bool lower_clamp(Call& c) {
  const DType dtype = c.dtype();
  ValueId x = c.operand("self", dtype);
  const bool low = c.has("min"), high = c.has("max");
  if (is_float(dtype) && !c.is_tensor("min") && !c.is_tensor("max")) {
    Attrs attrs;
    auto bound = [&](std::string_view name) {
      const Number number = c.number(name);
      const Dim* dim = std::get_if<Dim>(&number);
      if (dim != nullptr && !dim->is_constant()) return false;
      attrs.set(name, to_double(number));
      return true;
    };
    if ((!low || bound("min")) && (!high || bound("max"))) return c.result(c.b.op(Op::kClip, {x}, attrs));
  }
  // By comparison, so that the gradient goes to self where it equals a bound; a NaN keeps none.
  if (is_float(dtype)) x = c.b.op(Op::kWhere, {c.b.op(Op::kIsNaN, {x}), c.b.op(Op::kDetach, {x}), x});
  auto limit = [&](Op beyond, std::string_view name) {
    const ValueId bound = c.operand(name, dtype);
    x = c.b.op(Op::kWhere, {c.b.op(beyond, {x, bound}), bound, x});
  };
  if (low) limit(Op::kLess, "min");
  if (high) limit(Op::kGreater, "max");
  return c.result(x);
}

bool lower_hardtanh(Call& c) {
  const bool relu6 = c.node().target == "aten::relu6.default";
  const double low = relu6 ? 0 : c.real("min_val", -1), high = relu6 ? 6 : c.real("max_val", 1);
  if (!is_float(c.dtype())) return false;
  return c.result(c.b.op(Op::kClip, {c.operand("self", c.dtype())}, {{"min", low}, {"max", high}, {"open", true}}));
}

// ---- three operands

// Of 16 bits only the result is rounded, as in the following.
bool lower_lerp(Call& c) {
  const DType dtype = opmath(c.dtype());
  const ValueId x = c.operand("self", dtype), end = c.operand("end", dtype);
  return c.result(c.b.add(x, c.b.mul(c.operand("weight", dtype), c.b.sub(end, x))));
}

static ValueId times_value(Call& c, ValueId x) {
  const bool is_one = !c.has("value") || (!c.is_tensor("value") && c.real("value") == 1);
  return is_one ? x : c.b.mul(x, c.operand("value", c.b.dtype(x)));
}

// self + value*(tensor1*tensor2), or of a quotient: the row's op. Backward keeps no operand times the value.
bool lower_add_of_two(Call& c) {
  const DType dtype = opmath(c.dtype());
  const ValueId x = c.b.op(c.op(), {c.operand("tensor1", dtype), c.operand("tensor2", dtype)});
  return c.result(c.b.add(c.operand("self", dtype), times_value(c, x)));
}

// ---- casts

bool lower_cast(Call& c) { return c.result(c.b.cast(c.tensor("self"), c.dtype())); }

}  // namespace lowtide
