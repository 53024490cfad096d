#include "ir/graph.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "attributes.h"
#include "bindings.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "ir/verify.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowtide::bindings {
namespace {

using Operands = std::vector<std::optional<int32_t>>;

InputKind input_kind(const std::string& text) {
  if (text == "input") return InputKind::kInput;
  if (text == "param") return InputKind::kParam;
  if (text == "buffer") return InputKind::kBuffer;
  LT_USER_CHECK(ErrorKind::kInvalidArgument, text == "constant",
                "expected an input of kind input, param, buffer or constant, found ", text);
  return InputKind::kConstant;
}

std::vector<ValueId> values_from(const Graph& graph, const Operands& operands) {
  std::vector<ValueId> values;
  for (const std::optional<int32_t>& operand : operands) {
    LT_USER_CHECK(ErrorKind::kInvalidArgument,
                  !operand || (*operand >= 0 && static_cast<size_t>(*operand) < graph.value_count()),
                  "no value has the number ", operand.value_or(0), "; the graph has ", graph.value_count());
    values.push_back(operand ? ValueId{*operand} : ValueId{});
  }
  return values;
}

// `outputs`: a triple (name, dtype, shape) for each.
std::vector<int32_t> add_call(Graph& graph, Op op, const std::string& target, const Operands& operands,
                              nb::list outputs, Attrs attrs, const std::string& module, const std::string& line) {
  std::vector<TensorType> types;
  std::vector<std::string> names;
  for (nb::handle output : outputs) {
    nb::tuple triple = nb::cast<nb::tuple>(output);
    names.push_back(nb::cast<std::string>(triple[0]));
    types.push_back({dtype_from(triple[1]), shape_from(triple[2])});
  }
  const NodeId node = graph.add_node(op, values_from(graph, operands), std::move(types), std::move(attrs),
                                     Origin{module, line, OriginKind::kForward, ""}, {}, std::move(names));
  graph.edit(node).target = target;
  std::vector<int32_t> ids;
  for (ValueId value : graph.node(node).outputs) ids.push_back(value.index);
  return ids;
}

}  // namespace

void bind_graph(nb::module_& module) {
  nb::class_<Graph> graph(module, "Graph", "A graph of tensors; values are named by numbers, sizes are ints or text.");
  graph.def(nb::init<std::string>(), "name"_a)
      .def(
          "add_symbol_range",
          [](Graph& graph, const std::string& name, int64_t low, std::optional<int64_t> high) {
            DimRange range{low};
            if (high) range.high = *high;
            graph.ranges()[name] = range;
          },
          "name"_a, "low"_a, "high"_a = nb::none())
      .def(
          "add_input",
          [](Graph& graph, const std::string& name, nb::handle dtype, nb::handle shape, const std::string& kind,
             bool requires_grad, nb::handle strides) {
            return graph
                .add_input(name, {dtype_from(dtype), shape_from(shape)}, input_kind(kind), requires_grad,
                           shape_from(strides))
                .index;
          },
          "name"_a, "dtype"_a, "shape"_a, "kind"_a, "requires_grad"_a = false, "strides"_a = nb::make_tuple(),
          "Empty strides: row-major.")
      .def(
          "add_aten",
          [](Graph& graph, const std::string& target, const Operands& operands,
             const std::vector<std::string>& operand_names, nb::list outputs, nb::dict attrs, const std::string& path,
             const std::string& line) {
            LT_USER_CHECK(ErrorKind::kInvalidArgument, operands.size() == operand_names.size(), target, ": ",
                          operands.size(), " operands, but ", operand_names.size(), " names");
            Attrs all = attrs_from(attrs);
            all.set("operands", operand_names);
            return add_call(graph, Op::kAten, target, operands, outputs, std::move(all), path, line);
          },
          "target"_a, "operands"_a, "operand_names"_a, "outputs"_a, "attrs"_a, "module"_a, "line"_a,
          "Returns the numbers of the outputs; each of `outputs` is (name, dtype, shape).")
      .def(
          "add_python_op",
          [](Graph& graph, const std::string& target, const Operands& operands, nb::list outputs, int64_t call,
             nb::handle sizes, std::optional<std::string> computes, const std::string& path, const std::string& line) {
            Attrs attrs{{"call", Dim(call)}};
            if (computes) attrs.set("computes", *computes);
            if (Shape dims = shape_from(sizes); !dims.empty())
              attrs.set("sizes", std::vector<Dim>(dims.begin(), dims.end()));
            return add_call(graph, Op::kPythonOp, target, operands, outputs, std::move(attrs), path, line);
          },
          "target"_a, "operands"_a, "outputs"_a, "call"_a, "sizes"_a, "computes"_a.none(), "module"_a, "line"_a,
          "`sizes`: what the call takes beside tensors and plain objects; `computes`: the op that it is known to be.")
      .def(
          "add_output", [](Graph& graph, int32_t value) { graph.add_output(values_from(graph, {value})[0]); },
          "value"_a)
      .def(
          "type_of",
          [](const Graph& graph, int32_t value) {
            const TensorType& type = graph.type(values_from(graph, {value})[0]);
            nb::list shape;
            for (const Dim& dim : type.shape) shape.append(to_string(dim));
            return nb::make_tuple(std::string(name(type.dtype)), shape);
          },
          "value"_a, "(dtype, shape)")
      .def("verify", [](const Graph& graph) { verify(graph); })
      .def("text", [](const Graph& graph) { return print(graph); })
      .def("clone", &Graph::clone)
      .def_static("parse", [](const std::string& text) { return parse(text); }, "text"_a);
  bind_graph_nodes(module, graph);
}

}  // namespace lowtide::bindings
