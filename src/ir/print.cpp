#include "ir/print.h"

#include <algorithm>
#include <limits>

#include "base/scanner.h"
#include "base/text.h"
#include "ir/text_form.h"

namespace lowtide {

using namespace text_form;

namespace {

constexpr size_t kLineWidth = 120;

std::string write_name(char sigil, std::string_view name) {
  const bool bare = !name.empty() && std::all_of(name.begin(), name.end(), in_name);
  return bare ? concat(sigil, name) : concat(sigil, quote(name));
}

std::string write_list(const Shape& dims) { return join(dims, ", "); }

struct AttrWriter {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(const Dim& value) const { return to_string(value); }
  std::string operator()(double value) const { return to_text(value); }
  std::string operator()(const std::string& value) const { return quote(value); }
  std::string operator()(DType value) const { return std::string(name(value)); }
  std::string operator()(const Shape& values) const { return concat("[", write_list(values), "]"); }
  // An empty list of numbers or strings says which it is; [] alone is of sizes.
  std::string operator()(const std::vector<double>& values) const {
    if (values.empty()) return "floats[]";
    return concat("[", join(values, ", ", [](auto& out, double value) { out << to_text(value); }), "]");
  }
  std::string operator()(const std::vector<std::string>& values) const {
    if (values.empty()) return "strings[]";
    return concat("[", join(values, ", ", [](auto& out, const std::string& value) { out << quote(value); }), "]");
  }
};

class Printer {
 public:
  explicit Printer(const Graph& graph) : graph_(graph) {}

  std::string graph(size_t indent) const {
    const std::string margin(indent, ' ');
    std::string text = header(margin);
    for (NodeId id : graph_.order()) text += concat(margin, "  ", node(id, indent + 2), "\n");
    text += concat(margin, "  return");
    const char* separator = " ";
    for (const GraphOutput& output : graph_.outputs()) {
      text += concat(separator, value(output.value), " ", kOutputKinds[static_cast<size_t>(output.kind)]);
      if (output.target) text += concat(" ", value(output.target));
      separator = ", ";
    }
    return concat(text, "\n", margin, "}\n");
  }

  std::string node(NodeId id, size_t indent) const {
    const Node& node = graph_.node(id);
    std::string text = join(node.outputs, ", ", [&](auto& out, ValueId output) {
      out << (output ? concat(value(output), ": ", to_string(graph_.type(output))) : std::string(kReserved));
    });
    if (node.outputs.empty()) text = "()";
    text += " = ";
    if (is_aten_call(node.op) && is_bare_target(node.target)) {
      text += node.target;
    } else {
      text += name(node.op);
      if (!node.target.empty()) text += concat(" ", quote(node.target));
    }
    if (!node.attrs.empty())
      text += concat("(",
                     join(node.attrs, ", ",
                          [](auto& out, const Attrs::Entry& entry) {
                            out << entry.first << "=" << std::visit(AttrWriter(), entry.second);
                          }),
                     ")");
    if (!node.inputs.empty())
      text += concat(" ", join(node.inputs, ", ", [&](auto& out, ValueId input) {
                       out << (input ? value(input) : std::string(kReserved));
                     }));
    if (node.body) text += " {";
    if (const std::string origin = write_origin(node.origin); !origin.empty()) text += concat("  // ", origin);
    if (node.body) text += concat("\n", Printer(*node.body).graph(indent + 2), std::string(indent, ' '), "}");
    return text;
  }

 private:
  std::string value(ValueId id) const { return write_name('%', graph_.value(id).name); }

  std::string input(const GraphInput& input) const {
    std::string text = concat(value(input.value), ": ", to_string(graph_.type(input.value)), " ",
                              kInputKinds[static_cast<size_t>(input.kind)]);
    const bool is_param = input.kind == InputKind::kParam;
    if (input.requires_grad != is_param) text += is_param ? " frozen" : " grad";
    if (!input.strides.empty()) text += concat(" strides(", write_list(input.strides), ")");
    return text;
  }

  std::string header(const std::string& margin) const {
    std::vector<std::string> inputs;
    for (const GraphInput& item : graph_.inputs()) inputs.push_back(input(item));
    const std::string head = concat(margin, "graph ", write_name('@', graph_.name()), "(");
    std::string tail = ")";
    if (!graph_.ranges().empty())
      tail += concat(" where ", join(graph_.ranges(), ", ", [](auto& out, const auto& item) {
                       out << item.first << " in [" << item.second.low << ", ";
                       if (item.second.high == std::numeric_limits<int64_t>::max()) {
                         out << "inf]";
                       } else {
                         out << item.second.high << "]";
                       }
                     }));
    tail += " {\n";
    const std::string line = concat(head, join(inputs, ", "), tail);
    if (line.size() <= kLineWidth + 1 || inputs.empty()) return line;
    return concat(head, "\n", margin, "    ", join(inputs, concat(",\n", margin, "    ")), tail);
  }

  const Graph& graph_;
};

}  // namespace

std::string print(const Graph& graph) { return Printer(graph).graph(0); }

std::string print_node(const Graph& graph, NodeId node) { return Printer(graph).node(node, 0); }

std::string describe(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  std::string text(is_call(node.op) && !node.target.empty() ? node.target : std::string(name(node.op)));
  const Origin& origin = node.origin;
  if (origin.kind != OriginKind::kForward) text += concat(", ", write_origin({"", "", origin.kind, ""}));
  if (origin.module.empty() && origin.line.empty()) return text;
  return concat(text, " (", origin.module, origin.module.empty() || origin.line.empty() ? "" : ", ", origin.line, ")");
}

}  // namespace lowtide
