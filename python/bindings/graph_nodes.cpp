// Reading a graph's values and nodes, and building one of lowtide's own ops, for exchange with other formats.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>

#include "attributes.h"
#include "bindings.h"
#include "ir/excerpt.h"
#include "ir/graph.h"
#include "ir/text_form.h"
#include "ops/builder.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowtide::bindings {
namespace {

constexpr std::array kInputKinds = {"input", "param", "buffer", "constant"};
constexpr std::array kOutputKinds = {"output", "update", "gradient"};
constexpr std::array kAttrTypes = {"int", "float", "bool", "string", "dtype", "ints", "floats"};

nb::object number_or_none(ValueId value) { return value ? nb::object(nb::int_(value.index)) : nb::none(); }

nb::list numbers(const std::vector<ValueId>& values) {
  nb::list items;
  for (ValueId value : values) items.append(number_or_none(value));
  return items;
}

ValueId value_from(const Graph& graph, std::optional<int32_t> number) {
  if (!number) return {};
  LT_USER_CHECK(ErrorKind::kInvalidArgument, *number >= 0 && static_cast<size_t>(*number) < graph.value_count(),
                "no value has the number ", *number, "; the graph has ", graph.value_count());
  return ValueId{*number};
}

nb::tuple type_to_python(const TensorType& type) {
  return nb::make_tuple(nb::str(name(type.dtype).data(), name(type.dtype).size()), sizes_to_python(type.shape));
}

nb::dict node_to_python(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  nb::dict entry;
  entry["op"] = nb::str(name(node.op).data(), name(node.op).size());
  entry["target"] = node.target;
  entry["inputs"] = numbers(node.inputs);
  entry["outputs"] = numbers(node.outputs);
  entry["attrs"] = typed_attrs(node.attrs);
  entry["origin"] = text_form::write_origin(node.origin);
  entry["has_body"] = node.body != nullptr;
  return entry;
}

nb::list nodes(const Graph& graph) {
  nb::list items;
  for (NodeId id : graph.order()) items.append(node_to_python(graph, id));
  return items;
}

nb::list inputs(const Graph& graph) {
  nb::list items;
  for (const GraphInput& input : graph.inputs()) {
    nb::dict entry;
    entry["value"] = input.value.index;
    entry["kind"] = kInputKinds[static_cast<size_t>(input.kind)];
    entry["requires_grad"] = input.requires_grad;
    entry["strides"] = sizes_to_python(input.strides);
    items.append(entry);
  }
  return items;
}

nb::list outputs(const Graph& graph) {
  nb::list items;
  for (const GraphOutput& output : graph.outputs()) {
    nb::dict entry;
    entry["value"] = output.value.index;
    entry["kind"] = kOutputKinds[static_cast<size_t>(output.kind)];
    entry["target"] = number_or_none(output.target);
    items.append(entry);
  }
  return items;
}

nb::dict ranges(const Graph& graph) {
  nb::dict result;
  for (const auto& [symbol, range] : graph.ranges())
    result[symbol.c_str()] =
        nb::make_tuple(range.low, range.high == DimRange().high ? nb::none() : nb::object(nb::int_(range.high)));
  return result;
}

// `types`: pairs (dtype, shape) for ops whose outputs nothing infers (calls, YieldOp), else None.
nb::list add_op(Graph& graph, const std::string& op_name, const std::vector<std::optional<int32_t>>& operands,
                nb::dict attrs, const std::vector<bool>& wanted, const std::string& origin, const std::string& target,
                nb::object types) {
  const std::optional<Op> op = find_op(op_name);
  LT_USER_CHECK(ErrorKind::kInvalidArgument, op.has_value(), "no op is called ", op_name);
  std::vector<ValueId> values;
  for (const std::optional<int32_t>& operand : operands) values.push_back(value_from(graph, operand));
  const Origin where = text_form::read_origin(origin).value_or(Origin{});
  NodeId node;
  if (types.is_none()) {
    Builder builder(graph);
    builder.set_origin(where);
    node = builder.node(*op, std::move(values), attrs_from(attrs), wanted);
  } else {
    std::vector<TensorType> given;
    for (nb::handle type : types) {
      nb::tuple pair = nb::cast<nb::tuple>(type);
      given.push_back({dtype_from(pair[0]), shape_from(pair[1])});
    }
    node = graph.add_node(*op, std::move(values), std::move(given), attrs_from(attrs), where, {}, {}, wanted);
  }
  graph.edit(node).target = target;
  return numbers(graph.node(node).outputs);
}

void add_output(Graph& graph, int32_t value, const std::string& kind, std::optional<int32_t> target) {
  const auto found = std::find(kOutputKinds.begin(), kOutputKinds.end(), kind);
  LT_USER_CHECK(ErrorKind::kInvalidArgument, found != kOutputKinds.end(), "no kind of output is called ", kind);
  graph.add_output(value_from(graph, value), static_cast<OutputKind>(found - kOutputKinds.begin()),
                   value_from(graph, target));
}

Graph excerpt_of(const Graph& graph, const std::vector<int32_t>& inputs, const std::vector<int32_t>& outputs,
                 const std::map<std::string, int64_t>& sizes) {
  std::vector<ValueId> from, to;
  for (int32_t value : inputs) from.push_back(value_from(graph, value));
  for (int32_t value : outputs) to.push_back(value_from(graph, value));
  return excerpt(graph, from, to, {sizes.begin(), sizes.end()});
}

nb::dict op_attributes() {
  nb::dict result;
  for (const OpInfo& info : all_ops()) {
    nb::dict attrs;
    for (const AttrSchema& attr : info.attrs)
      attrs[nb::str(attr.name.data(), attr.name.size())] = kAttrTypes[static_cast<size_t>(attr.type)];
    result[nb::str(info.name.data(), info.name.size())] = attrs;
  }
  return result;
}

}  // namespace

void bind_graph_nodes(nb::module_& module, nb::class_<Graph>& graph) {
  module.def("op_attributes", op_attributes, "op → attribute → type, from ops.def.");
  module.def(
      "canonical_size", [](const std::string& text) { return size_to_python(parse_dim(text)); }, "text"_a,
      "An int, or the canonical text of a size over symbols.");
  graph.def_prop_ro("name", [](const Graph& self) { return self.name(); })
      .def_prop_ro("value_count", [](const Graph& self) { return self.value_count(); })
      .def("value_name", [](const Graph& self, int32_t value) { return self.value(value_from(self, value)).name; })
      .def(
          "value_type",
          [](const Graph& self, int32_t value) { return type_to_python(self.type(value_from(self, value))); },
          "(dtype, shape); a size is an int, or text.")
      .def(
          "rename_value",
          [](Graph& self, int32_t value, const std::string& name) {
            self.rename(value_from(self, value), self.unique_name(name));
          },
          "value"_a, "name"_a, "A name that is taken gets a suffix.")
      .def("inputs", inputs, "Dicts of value, kind, requires_grad, strides (empty: row-major).")
      .def("outputs", outputs, "Dicts of value, kind (output, update, gradient), target.")
      .def("ranges", ranges, "symbol → (low, high or None).")
      .def("nodes", nodes,
           "In order: dicts of op, target, inputs, outputs (numbers or None), attrs (name → (type, value)), origin.")
      .def("find_value",
           [](const Graph& self, const std::string& name) { return number_or_none(self.find_value(name)); })
      .def("excerpt", excerpt_of, "inputs"_a, "outputs"_a, "sizes"_a,
           "The part that makes `outputs` from `inputs`, with sizes for symbols; see src/ir/excerpt.h.")
      .def("add_op", add_op, "op"_a, "operands"_a, "attrs"_a = nb::dict(), "wanted"_a = std::vector<bool>(),
           "origin"_a = "", "target"_a = "", "types"_a = nb::none(),
           "Adds a node of lowtide's; returns its outputs, None for those that are not made.")
      .def("add_target_output", add_output, "value"_a, "kind"_a, "target"_a = nb::none(),
           "`target`: the input whose new value or gradient this is.");
}

}  // namespace lowtide::bindings
