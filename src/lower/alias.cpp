#include "lower/alias.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace lowtide {

// "aten::add_.Tensor" → "add_".
static std::string_view base_name(std::string_view target) {
  if (!target.starts_with("aten::")) return {};
  target.remove_prefix(6);
  return target.substr(0, target.find('.'));
}

// The name of a view, also of one in place ("unsqueeze_").
static std::string_view view_name(std::string_view target) {
  const std::string_view name = base_name(target);
  return name.ends_with("_") ? name.substr(0, name.size() - 1) : name;
}

template <size_t N>
static bool is_one_of(std::string_view name, const std::array<std::string_view, N>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

constexpr std::array<std::string_view, 3> kSameElements = {"alias", "detach", "positive"};
// Views that are their own inverse.
constexpr std::array<std::string_view, 8> kInvolutions = {"transpose", "swapaxes", "swapdims", "t",
                                                          "mT",        "numpy_T",  "_conj",    "conj"};
constexpr std::array<std::string_view, 5> kReshapes = {"view", "view_as", "unflatten", "unsqueeze", "squeeze"};
constexpr std::array<std::string_view, 5> kSplits = {"split", "split_with_sizes", "chunk", "tensor_split", "unbind"};
constexpr std::array<std::string_view, 15> kOtherViews = {
    "permute",  "movedim", "moveaxis",   "slice",        "select",          "narrow", "expand", "expand_as",
    "diagonal", "unfold",  "as_strided", "view_as_real", "view_as_complex", "real",   "imag"};
constexpr std::array<std::string_view, 5> kMaybeViews = {"reshape", "reshape_as", "flatten", "ravel", "contiguous"};

bool keeps_all_in_order(const Node& view) {
  const std::string_view name = view_name(view.target);
  return is_one_of(name, kReshapes) || is_one_of(name, kSameElements) || name == "to";
}

std::vector<std::string> known_views() {
  std::vector<std::string> names{"to"};
  const auto add = [&](const auto& more) { names.insert(names.end(), more.begin(), more.end()); };
  add(kSameElements);
  add(kInvolutions);
  add(kReshapes);
  add(kSplits);
  add(kOtherViews);
  add(kMaybeViews);
  return names;
}

Aliasing aliasing(const Graph& captured, const Node& node) {
  const std::string_view name = base_name(node.target);
  if (name.empty() || node.inputs.empty() || !node.inputs[0]) return Aliasing::kNone;
  if (is_one_of(name, kSameElements)) return Aliasing::kSame;
  if (is_one_of(name, kInvolutions) || is_one_of(name, kReshapes) || is_one_of(name, kSplits) ||
      is_one_of(name, kOtherViews))
    return Aliasing::kView;
  if (is_one_of(name, kMaybeViews)) {
    if (!node.attrs.has("shares")) return Aliasing::kMaybe;
    return node.attrs.b("shares") ? Aliasing::kView : Aliasing::kNone;
  }
  if (name == "to") {
    const bool copies = node.attrs.b("copy", false) || node.attrs.has("memory_format");
    const bool same = node.outputs[0] && captured.type(node.outputs[0]).dtype == captured.type(node.inputs[0]).dtype;
    return same && !copies ? Aliasing::kSame : Aliasing::kNone;
  }
  return Aliasing::kNone;
}

bool may_share(const Node& node) {
  constexpr std::array<std::string_view, 20> kNames = {"adjoint",         "alpha_dropout",
                                                       "atleast_1d",      "atleast_2d",
                                                       "atleast_3d",      "broadcast_tensors",
                                                       "broadcast_to",    "dropout",
                                                       "feature_dropout", "lift",
                                                       "lift_fresh",      "mH",
                                                       "meshgrid",        "resolve_conj",
                                                       "resolve_neg",     "to",
                                                       "type_as",         "unsafe_chunk",
                                                       "unsafe_split",    "unsafe_split_with_sizes"};
  return is_one_of(base_name(node.target), kNames);
}

// In-place forms whose functional ones have another overload.
constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kOtherOverloads = {
    {{"aten::float_power_.Scalar", "aten::float_power.Tensor_Scalar"},
     {"aten::float_power_.Tensor", "aten::float_power.Tensor_Tensor"},
     {"aten::floor_divide_.Tensor", "aten::floor_divide.default"},
     {"aten::ldexp_.default", "aten::ldexp.Tensor"},
     {"aten::pow_.Scalar", "aten::pow.Tensor_Scalar"},
     {"aten::pow_.Tensor", "aten::pow.Tensor_Tensor"},
     {"aten::transpose_.default", "aten::transpose.int"}}};

std::string functional_target(std::string_view target) {
  const std::string_view name = base_name(target);
  const std::string overload(target.substr(std::min(target.size(), target.find('.'))));
  if (name.starts_with("_foreach_") || name.starts_with("_fused_")) return {};
  if (name.starts_with("__i") && name.ends_with("__")) return concat("aten::__", name.substr(3), overload);
  if (!name.ends_with("_") || name.ends_with("__")) return {};
  if (name == "normal_") return concat("aten::normal_functional", overload);
  if (name == "bernoulli_" && overload == ".float") return "aten::bernoulli.p";
  for (const auto& [written, functional] : kOtherOverloads)
    if (target == written) return std::string(functional);
  if (name == "_index_put_impl_") return "aten::index_put.default";
  return concat("aten::", name.substr(0, name.size() - 1), overload);
}

static const Shape& base_shape(const Graph& captured, const Node& view) { return captured.type(view.inputs[0]).shape; }

static Dim axis_of(const Graph& captured, const Node& view) {
  const Dim axis = view.attrs.has("dim") ? view.attrs.dim("dim") : Dim(0);
  const int64_t rank = static_cast<int64_t>(base_shape(captured, view).size());
  return axis.constant() < 0 ? axis + rank : axis;
}

// The slice that output `index` of a split is.
static Attrs slice_of_split(const Graph& captured, const Node& view, size_t index) {
  const Dim axis = axis_of(captured, view);
  const size_t at = static_cast<size_t>(axis.constant());
  const Dim length = captured.type(view.outputs[index]).shape[at];
  Dim start = 0;
  if (view.attrs.has("split_sizes")) {
    for (size_t i = 0; i < index; ++i) start = start + view.attrs.ints("split_sizes")[i];
  } else if (view.attrs.has("split_size")) {
    start = view.attrs.dim("split_size") * Dim(static_cast<int64_t>(index));
  } else if (view.attrs.has("chunks")) {
    const Dim chunks = view.attrs.dim("chunks");
    start = floordiv(base_shape(captured, view)[at] + chunks - 1, chunks) * Dim(static_cast<int64_t>(index));
  } else {
    for (size_t i = 0; i < index; ++i) {
      LT_USER_CHECK(ErrorKind::kUnsupported, view.outputs[i].valid(), view.target,
                    ": writing to one of its unnamed parts");
      start = start + captured.type(view.outputs[i]).shape[at];
    }
  }
  return {{"dim", axis}, {"start", start}, {"end", start + length}, {"step", Dim(1)}};
}

static Attrs select_of_unbind(const Graph& captured, const Node& view, size_t index) {
  return {{"dim", axis_of(captured, view)}, {"index", Dim(static_cast<int64_t>(index))}};
}

static Attrs without_operands(Attrs attrs) {
  attrs.erase("operands");
  return attrs;
}

// The target of a view, without the underscore of one in place.
static std::string name_of_view(const Node& view) {
  const std::string functional = functional_target(view.target);
  return functional.empty() ? view.target : functional;
}

CallSpec view_again(const Graph& captured, const Node& view, size_t index, ValueId base) {
  const std::string_view name = view_name(view.target);
  if (name == "unbind") return {"aten::select.int", {{"self", base}}, select_of_unbind(captured, view, index)};
  if (is_one_of(name, kSplits)) return {"aten::slice.Tensor", {{"self", base}}, slice_of_split(captured, view, index)};
  // view_as and expand_as read only the shape of `other`.
  const Shape& shape = captured.type(view.outputs[0]).shape;
  if (name == "view_as" || name == "reshape_as") return {"aten::view.default", {{"self", base}}, {{"size", shape}}};
  if (name == "expand_as") return {"aten::expand.default", {{"self", base}}, {{"size", shape}}};
  return {name_of_view(view), {{"self", base}}, without_operands(view.attrs)};
}

std::optional<CallSpec> write_through(const Graph& captured, const Node& view, size_t index, ValueId base,
                                      ValueId written) {
  const std::string_view name = view_name(view.target);
  const Attrs attrs = without_operands(view.attrs);
  if (view.target == "aten::view.dtype")
    return CallSpec{view.target, {{"self", written}}, {{"dtype", captured.type(view.inputs[0]).dtype}}};
  if (is_one_of(name, kReshapes) || is_one_of(name, kMaybeViews))
    return CallSpec{"aten::view.default", {{"self", written}}, {{"size", base_shape(captured, view)}}};
  if (is_one_of(name, kSameElements) || name == "to") return CallSpec{"aten::alias.default", {{"self", written}}, {}};
  if (is_one_of(name, kInvolutions)) return CallSpec{name_of_view(view), {{"self", written}}, attrs};
  if (name == "permute") {
    const std::vector<Dim>& dims = view.attrs.ints("dims");
    const int64_t rank = static_cast<int64_t>(dims.size());
    std::vector<Dim> inverse(dims.size());
    for (int64_t i = 0; i < rank; ++i)
      inverse[static_cast<size_t>((dims[static_cast<size_t>(i)].constant() + rank) % rank)] = i;
    return CallSpec{view.target, {{"self", written}}, {{"dims", inverse}}};
  }
  if (name == "movedim" || name == "moveaxis") {
    Attrs swapped = attrs;
    swapped.set("source", *attrs.find("destination"));
    swapped.set("destination", *attrs.find("source"));
    return CallSpec{view.target, {{"self", written}}, swapped};
  }
  const std::vector<std::pair<std::string, ValueId>> both{{"self", base}, {"src", written}};
  if (name == "slice") return CallSpec{"aten::slice_scatter.default", both, attrs};
  if (name == "select") return CallSpec{"aten::select_scatter.default", both, attrs};
  if (name == "unbind") return CallSpec{"aten::select_scatter.default", both, select_of_unbind(captured, view, index)};
  if (is_one_of(name, kSplits))
    return CallSpec{"aten::slice_scatter.default", both, slice_of_split(captured, view, index)};
  if (name == "narrow") {
    const Dim start = attrs.dim("start"),
              size = base_shape(captured, view)[static_cast<size_t>(axis_of(captured, view).constant())];
    const Dim from = start.is_constant() && start.constant() < 0 ? size + start : start;
    return CallSpec{
        "aten::slice_scatter.default",
        both,
        {{"dim", attrs.dim("dim")}, {"start", from}, {"end", from + attrs.dim("length")}, {"step", Dim(1)}}};
  }
  if (name == "view_as_real") return CallSpec{"aten::view_as_complex.default", {{"self", written}}, {}};
  if (name == "view_as_complex") return CallSpec{"aten::view_as_real.default", {{"self", written}}, {}};
  if (name == "diagonal") return CallSpec{"aten::diagonal_scatter.default", both, attrs};
  return std::nullopt;
}

}  // namespace lowtide
