#include "lower/call.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/half.h"
#include "lower/promotion.h"

namespace lowtide {

std::string describe_call(const Node& node) {
  const Origin& origin = node.origin;
  if (origin.module.empty() && origin.line.empty()) return node.target;
  const std::string_view comma = origin.module.empty() || origin.line.empty() ? "" : ", ";
  return concat(node.target, " (", origin.module, comma, origin.line, ")");
}

const std::vector<std::string>& operand_names(const Node& node) {
  static const std::vector<std::string> kNone;
  const auto* value = node.attrs.find("operands");
  const auto* names = value != nullptr ? std::get_if<std::vector<std::string>>(value) : nullptr;
  LT_USER_CHECK(ErrorKind::kInvalidGraph, node.inputs.size() == (names != nullptr ? names->size() : 0),
                describe_call(node), ": `operands` must name each of its ", node.inputs.size(), " operands");
  return names != nullptr ? *names : kNone;
}

DType dtype_of(const Number& number) {
  if (std::holds_alternative<bool>(number)) return DType::kBool;
  return std::holds_alternative<double>(number) ? DType::kF32 : DType::kI64;
}

double to_double(const Number& number) {
  if (const bool* flag = std::get_if<bool>(&number)) return *flag ? 1 : 0;
  const Dim* dim = std::get_if<Dim>(&number);
  if (dim == nullptr) return std::get<double>(number);
  LT_USER_CHECK(ErrorKind::kUnsupported, dim->is_constant(), "the size ", to_string(*dim),
                " depends on the inputs where the graph needs a number");
  return static_cast<double>(dim->constant());
}

int64_t Call::known(std::string_view name, const Dim& dim) const {
  LT_USER_CHECK(ErrorKind::kUnsupported, dim.is_constant(), describe_call(node()), ": `", name, "` is the size ",
                to_string(dim), ", which depends on the inputs; the graph needs a number");
  return dim.constant();
}

double Call::real(std::string_view name) const {
  const Number found = number(name);
  const Dim* dim = std::get_if<Dim>(&found);
  return dim != nullptr ? static_cast<double>(known(name, *dim)) : to_double(found);
}

ValueId Call::optional(std::string_view name) const {
  const std::vector<std::string>& names = operand_names(node());
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return operands_[i];
  return {};
}

ValueId Call::tensor(std::string_view name) const {
  const ValueId found = optional(name);
  LT_USER_CHECK(ErrorKind::kInvalidGraph, found.valid(), describe_call(node()), ": expected a tensor argument `", name,
                "`, found none");
  return found;
}

std::vector<ValueId> Call::tensors(std::string_view name) const {
  std::vector<ValueId> found;
  const std::vector<std::string>& names = operand_names(node());
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) found.push_back(operands_[i]);
  return found;
}

Number Call::number(std::string_view name) const {
  const auto* value = node().attrs.find(name);
  LT_USER_CHECK(ErrorKind::kInvalidGraph, value != nullptr, describe_call(node()), ": expected a number `", name,
                "`, found none");
  if (const bool* flag = std::get_if<bool>(value)) return *flag;
  if (const Dim* dim = std::get_if<Dim>(value)) return *dim;
  const double* real = std::get_if<double>(value);
  LT_USER_CHECK(ErrorKind::kInvalidGraph, real != nullptr, describe_call(node()), ": `", name, "` is not a number");
  return *real;
}

bool Call::flag(std::string_view name, bool fallback) const {
  if (!node().attrs.has(name)) return fallback;
  return real(name) != 0;
}

std::string Call::text_or_empty(std::string_view name) const {
  const auto* value = node().attrs.find(name);
  const std::string* text = value != nullptr ? std::get_if<std::string>(value) : nullptr;
  return text != nullptr ? *text : std::string();
}

Dim Call::dim(std::string_view name) const {
  const Number found = number(name);
  if (const Dim* dim = std::get_if<Dim>(&found)) return *dim;
  const double value = to_double(found);
  LT_USER_CHECK(ErrorKind::kInvalidGraph, value == std::trunc(value), describe_call(node()), ": `", name,
                "` is no integer but ", value);
  return Dim(static_cast<int64_t>(value));
}

std::vector<Dim> Call::dims(std::string_view name) const {
  const auto* value = node().attrs.find(name);
  if (value == nullptr) return {};
  if (const auto* list = std::get_if<std::vector<Dim>>(value)) return *list;
  // An empty list has no element to tell its type by.
  if (const auto* list = std::get_if<std::vector<double>>(value); list && list->empty()) return {};
  if (const auto* list = std::get_if<std::vector<std::string>>(value); list && list->empty()) return {};
  return {dim(name)};
}

std::vector<double> Call::reals(std::string_view name) const {
  const auto* value = node().attrs.find(name);
  if (value == nullptr) return {};
  if (const auto* list = std::get_if<std::vector<double>>(value)) return *list;
  std::vector<double> result;
  for (const Dim& dim : dims(name)) result.push_back(static_cast<double>(known(name, dim)));
  return result;
}

std::vector<Dim> Call::window(std::string_view name, size_t rank, Dim fallback) const {
  std::vector<Dim> sizes = dims(name);
  if (sizes.empty()) sizes = {fallback};
  if (sizes.size() == 1) sizes.assign(rank, Dim(sizes[0]));
  LT_USER_CHECK(ErrorKind::kInvalidGraph, sizes.size() == rank, describe_call(node()), ": `", name, "` has ",
                sizes.size(), " entries for ", rank, " dims");
  return sizes;
}

int64_t Call::axis(std::string_view name, int64_t rank, int64_t fallback) const {
  int64_t axis = integer(name, fallback);
  if (axis < 0) axis += std::max<int64_t>(rank, 1);
  LT_USER_CHECK(ErrorKind::kInvalidGraph, axis >= 0 && axis < std::max<int64_t>(rank, 1), describe_call(node()), ": `",
                name, "` = ", integer(name, fallback), " for ", rank, " dims");
  return axis;
}

std::vector<int64_t> Call::axes(std::string_view name, int64_t rank) const {
  std::vector<int64_t> result;
  for (const Dim& dim : dims(name)) {
    int64_t axis = known(name, dim);
    if (axis < 0) axis += rank;
    LT_USER_CHECK(ErrorKind::kInvalidGraph, (axis >= 0 && axis < rank) || rank == 0, describe_call(node()), ": axis ",
                  dim.constant(), " of ", rank, " dims");
    if (rank > 0) result.push_back(axis);
  }
  if (result.empty())
    for (int64_t axis = 0; axis < rank; ++axis) result.push_back(axis);
  std::sort(result.begin(), result.end());
  return result;
}

ValueId Call::operand(std::string_view name, DType dtype) const {
  const ValueId found = optional(name);
  return found ? b.cast(found, dtype) : constant(number(name), dtype);
}

ValueId Call::constant(const Number& number, DType dtype) const { return filler({}, number, dtype); }

ValueId Call::full(const Shape& shape, const Number& number, DType dtype) const {
  const Dim* size = std::get_if<Dim>(&number);
  if (!is_half(dtype) || (size != nullptr && !size->is_constant())) return filler(shape, number, dtype);
  return filler(shape, Number(double{rounded_to_half(dtype, to_double(number))}), dtype);
}

ValueId Call::filler(const Shape& shape, const Number& number, DType dtype) const {
  Attrs attrs{{"dtype", dtype}};
  if (!shape.empty()) attrs.set("shape", shape);
  if (const Dim* size = std::get_if<Dim>(&number); is_float(dtype) && size != nullptr && !size->is_constant()) {
    return b.expand(b.scalar_dim(*size, dtype), shape);
  } else if (is_float(dtype)) {
    attrs.set("value", to_double(number));
  } else if (dtype == DType::kBool) {
    attrs.set("int_value", Dim(size != nullptr && !size->is_constant() ? 1 : to_double(number) != 0 ? 1 : 0));
  } else {
    attrs.set("int_value", size != nullptr ? *size : Dim(static_cast<int64_t>(to_double(number))));
  }
  return b.op(shape.empty() ? Op::kConstant : Op::kConstantOfShape, {}, std::move(attrs));
}

DType Call::common_dtype(std::initializer_list<std::string_view> names) const {
  Promotion promotion;
  for (std::string_view name : names) {
    if (const ValueId value = optional(name))
      promotion.add_tensor(b.dtype(value), b.rank(value) > 0);
    else if (node().attrs.has(name))
      promotion.add_number(dtype_of(number(name)));
  }
  const DType found = promotion.result();
  // A default dtype wider than f32 shows only in the output.
  const DType out = type().dtype;
  return is_float(out) && !is_float(found) ? out : is_float(out) && is_float(found) && out > found ? out : found;
}

const TensorType& Call::type(size_t output) const {
  LT_CHECK(wants(output), describe_call(node()), " has no output ", output);
  return captured_.type(node().outputs[output]);
}

void Call::set_size(const Dim& size, ValueId count, const Dim& high) { sizes_.set(b, size, count, 0, high); }

bool Call::result(ValueId value, size_t output) {
  if (wants(output)) results_[output] = b.cast(value, type(output).dtype);
  return true;
}

void Call::unsupported(std::string_view reason) const {
  LT_USER_FAIL(ErrorKind::kUnsupported, describe_call(node()), ": ", reason);
}

}  // namespace lowtide
