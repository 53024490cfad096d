#include "ir/parse.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/scanner.h"
#include "ir/text_form.h"
#include "ir/verify.h"
#include "symbolic/scan_dim.h"

namespace lowtide {

using namespace text_form;

namespace {

constexpr int kMaxBodyDepth = 16;

class Parser {
 public:
  explicit Parser(std::string_view text) : scanner_(text) {}

  Graph whole() {
    Graph graph = read_graph();
    if (!scanner_.at_end()) scanner_.fail_expected("the end of the text");
    return graph;
  }

 private:
  Graph read_graph() {
    const Scanner::Nested nested(scanner_, kMaxBodyDepth);
    scanner_.expect("graph");
    Graph graph(read_name('@'));
    scanner_.expect("(");
    if (!scanner_.accept(")")) {
      do read_input(graph);
      while (scanner_.accept(","));
      scanner_.expect(")");
    }
    if (scanner_.accept("where")) {
      do read_range(graph);
      while (scanner_.accept(","));
    }
    scanner_.expect("{");
    while (!scanner_.accept("return")) read_node(graph);
    if (scanner_.peek_on_line() == '%') {
      do read_output(graph);
      while (scanner_.accept(","));
    }
    scanner_.expect("}");
    return graph;
  }

  std::string read_name(char sigil) {
    scanner_.expect(std::string_view(&sigil, 1));
    if (scanner_.rest().starts_with('"')) return scanner_.quoted();
    std::string name(scanner_.take_while(in_name));
    if (name.empty()) scanner_.fail_expected("a name");
    return name;
  }

  // A name that nothing in the graph has yet.
  std::string read_new_name(const Graph& graph) {
    const size_t at = scanner_.token_start();
    if (scanner_.peek() != '%') scanner_.fail_expected("a value (%name)");
    std::string name = read_name('%');
    if (graph.find_value(name)) scanner_.fail_at(at, concat("expected a new name, found %", name, " a second time"));
    return name;
  }

  ValueId read_value(const Graph& graph) {
    const size_t at = scanner_.token_start();
    if (scanner_.peek() != '%') scanner_.fail_expected("a value (%name)");
    const std::string name = read_name('%');
    const ValueId id = graph.find_value(name);
    if (!id) scanner_.fail_at(at, concat("expected a value defined above, found %", name));
    return id;
  }

  DType read_dtype() {
    const size_t at = scanner_.token_start();
    const std::string word = scanner_.identifier("a dtype");
    const std::optional<DType> dtype = parse_dtype(word);
    if (!dtype) scanner_.fail_at(at, concat("expected a dtype (f32, i64, bool, ...), found '", word, "'"));
    return *dtype;
  }

  Shape read_dims(std::string_view close) {
    Shape dims;
    if (scanner_.accept(close)) return dims;
    do dims.push_back(scan_dim(scanner_));
    while (scanner_.accept(","));
    scanner_.expect(close);
    return dims;
  }

  TensorType read_type() {
    const DType dtype = read_dtype();
    scanner_.expect("[");
    return {dtype, read_dims("]")};
  }

  // The index of the word that follows among `words`.
  template <class Words>
  size_t read_word(const Words& words, std::string_view what) {
    for (size_t i = 0; i < std::size(words); ++i)
      if (scanner_.accept(words[i])) return i;
    scanner_.fail_expected(what);
  }

  void read_input(Graph& graph) {
    std::string name = read_new_name(graph);
    scanner_.expect(":");
    TensorType type = read_type();
    const auto kind = static_cast<InputKind>(read_word(kInputKinds, "input, param, buffer or constant"));
    bool requires_grad = kind == InputKind::kParam;
    if (kind == InputKind::kParam && scanner_.accept("frozen")) requires_grad = false;
    if (kind != InputKind::kParam && scanner_.accept("grad")) requires_grad = true;
    Shape strides;
    if (scanner_.accept("strides")) {
      scanner_.expect("(");
      strides = read_dims(")");
    }
    graph.add_input(std::move(name), std::move(type), kind, requires_grad, std::move(strides));
  }

  int64_t read_bound() {
    const size_t at = scanner_.token_start();
    const Dim bound = scan_dim(scanner_);
    if (!bound.is_constant()) scanner_.fail_at(at, "expected a number, found a symbolic size");
    return bound.constant();
  }

  void read_range(Graph& graph) {
    const size_t at = scanner_.token_start();
    const std::string symbol = scanner_.identifier("a symbol");
    scanner_.expect("in");
    scanner_.expect("[");
    DimRange range;
    range.low = read_bound();
    scanner_.expect(",");
    range.high = scanner_.accept("inf") ? std::numeric_limits<int64_t>::max() : read_bound();
    scanner_.expect("]");
    if (!graph.ranges().emplace(symbol, range).second) scanner_.fail_at(at, concat("a second range of ", symbol));
  }

  struct Output {
    std::string name;
    TensorType type;
    bool wanted = true;
  };

  Output read_node_output(const Graph& graph) {
    if (scanner_.accept(kReserved)) return {.name = {}, .type = {}, .wanted = false};
    Output output;
    output.name = read_new_name(graph);
    scanner_.expect(":");
    output.type = read_type();
    return output;
  }

  void read_op(Op& op, std::string& target) {
    const size_t at = scanner_.token_start();
    std::string word = scanner_.identifier("an op");
    if (scanner_.rest().starts_with("::")) {
      word += scanner_.take_while(
          [](char c) { return c == ':' || c == '.' || c == '_' || std::isalnum(static_cast<unsigned char>(c)); });
      if (!is_bare_target(word)) scanner_.fail_at(at, concat("expected an op, found '", word, "'"));
      op = Op::kAten;
      target = std::move(word);
      return;
    }
    const std::optional<Op> known = find_op(word);
    if (!known) scanner_.fail_at(at, concat("expected an op, found '", word, "', which is none"));
    op = *known;
    if (scanner_.peek_on_line() == '"') target = scanner_.quoted();
  }

  void read_node(Graph& graph) {
    std::vector<Output> outputs;
    if (scanner_.accept("(")) {
      scanner_.expect(")");
    } else {
      const char next = scanner_.peek();
      if (next != '%' && next != '_') scanner_.fail_expected("a node, 'return' or '}'");
      do {
        const size_t at = scanner_.token_start();
        outputs.push_back(read_node_output(graph));
        for (size_t i = 0; i + 1 < outputs.size(); ++i)
          if (outputs[i].wanted && outputs[i].name == outputs.back().name)
            scanner_.fail_at(at, concat("expected a new name, found %", outputs[i].name, " a second time"));
      } while (scanner_.accept(","));
    }
    scanner_.expect("=");
    Op op;
    std::string target;
    read_op(op, target);
    Attrs attrs;
    if (scanner_.peek_on_line() == '(') attrs = read_attrs(op);
    std::vector<ValueId> inputs;
    if (const char next = scanner_.peek_on_line(); next == '%' || next == '_') {
      do inputs.push_back(scanner_.accept(kReserved) ? ValueId{} : read_value(graph));
      while (scanner_.accept(","));
    }
    const bool has_body = scanner_.peek_on_line() == '{' && scanner_.accept("{");
    Origin origin = read_origin_comment();

    std::vector<TensorType> types;
    std::vector<std::string> names;
    std::vector<bool> wanted;
    for (Output& output : outputs) {
      types.push_back(std::move(output.type));
      names.push_back(std::move(output.name));
      wanted.push_back(output.wanted);
    }
    const NodeId id = graph.add_node(op, std::move(inputs), std::move(types), std::move(attrs), std::move(origin), {},
                                     std::move(names), std::move(wanted));
    graph.edit(id).target = std::move(target);
    if (has_body) {
      graph.edit(id).body = std::make_unique<Graph>(read_graph());
      scanner_.expect("}");
    }
  }

  // The comment on the node's last line.
  Origin read_origin_comment() {
    scanner_.skip_blanks();
    const size_t at = scanner_.position();
    if (!scanner_.comment_follows()) return {};
    std::string_view comment = scanner_.take_while([](char c) { return c != '\n'; }).substr(2);
    if (comment.starts_with(' ')) comment.remove_prefix(1);
    std::optional<Origin> origin = read_origin(comment);
    if (!origin) scanner_.fail_at(at, "expected an origin (module  file:line  note), found another comment");
    return std::move(*origin);
  }

  Attrs read_attrs(Op op) {
    Attrs attrs;
    scanner_.expect("(");
    if (scanner_.accept(")")) return attrs;
    do {
      const size_t at = scanner_.token_start();
      const std::string name = scanner_.identifier("an attribute");
      if (attrs.has(name)) scanner_.fail_at(at, concat("attribute ", name, " a second time"));
      scanner_.expect("=");
      attrs.set(name, as_declared(op, name, read_attr()));
    } while (scanner_.accept(","));
    scanner_.expect(")");
    return attrs;
  }

  // Whole numbers where the op wants floats: alpha=1 is alpha=1.0.
  static Attrs::Value as_declared(Op op, std::string_view name, Attrs::Value value) {
    for (const AttrSchema& schema : info(op).attrs) {
      if (schema.name != name) continue;
      const Dim* dim = std::get_if<Dim>(&value);
      if (schema.type == AttrType::kFloat && dim && dim->is_constant()) return static_cast<double>(dim->constant());
      const Shape* dims = std::get_if<Shape>(&value);
      const auto is_number = [](const Dim& item) { return item.is_constant(); };
      if (schema.type == AttrType::kFloats && dims && std::all_of(dims->begin(), dims->end(), is_number)) {
        std::vector<double> numbers;
        for (const Dim& item : *dims) numbers.push_back(static_cast<double>(item.constant()));
        return numbers;
      }
    }
    return value;
  }

  Attrs::Value read_attr() {
    if (scanner_.accept("[")) return read_attr_list();
    if (scanner_.follows("floats") || scanner_.follows("strings")) {
      const size_t at = scanner_.position();
      const bool floats = scanner_.accept("floats") || !scanner_.accept("strings");
      if (scanner_.rest().starts_with("[]")) {
        scanner_.expect("[");
        scanner_.expect("]");
        if (floats) return std::vector<double>();
        return std::vector<std::string>();
      }
      scanner_.seek(at);
    }
    return read_scalar();
  }

  Attrs::Value read_scalar() {
    const char next = scanner_.peek();
    if (next == '"') return scanner_.quoted();
    if (scanner_.accept("true")) return true;
    if (scanner_.accept("false")) return false;
    if (double number; read_float(number)) return number;
    const size_t at = scanner_.position();
    if (scanner_.identifier_follows()) {
      if (const std::optional<DType> dtype = parse_dtype(scanner_.identifier("an attribute"))) return *dtype;
      scanner_.seek(at);
    }
    return scan_dim(scanner_);
  }

  // A number with a point, an exponent, inf or nan; false (and nothing taken) before anything else.
  bool read_float(double& number) {
    const size_t start = scanner_.token_start();
    const bool negative = scanner_.rest().starts_with('-');
    if (negative) scanner_.seek(start + 1);
    for (std::string_view word : {"inf", "nan"})
      if (scanner_.rest().starts_with(word) && scanner_.accept(word)) {
        number = word == "nan" ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
        if (negative) number = -number;
        return true;
      }
    scanner_.seek(start);
    const std::string_view text = scanner_.rest();
    const size_t digits = std::min(text.find_first_not_of("0123456789", negative ? 1 : 0), text.size());
    if (digits == (negative ? 1u : 0u) || digits == text.size() ||
        std::string_view(".eE").find(text[digits]) == std::string_view::npos)
      return false;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc()) scanner_.fail_at(start, "expected a number in the range of f64");
    scanner_.seek(start + static_cast<size_t>(end - text.data()));
    return true;
  }

  Attrs::Value read_attr_list() {
    if (scanner_.accept("]")) return Shape();
    Shape dims;
    std::vector<double> numbers;
    std::vector<std::string> strings;
    do {
      const size_t at = scanner_.token_start();
      Attrs::Value item = read_scalar();
      const size_t count = dims.size() + numbers.size() + strings.size();
      if (Dim* dim = std::get_if<Dim>(&item)) {
        dims.push_back(*dim);
      } else if (double* number = std::get_if<double>(&item)) {
        numbers.push_back(*number);
      } else if (std::string* string = std::get_if<std::string>(&item)) {
        strings.push_back(std::move(*string));
      } else {
        scanner_.fail_at(at, "expected a list of sizes, numbers or strings");
      }
      if (std::max({dims.size(), numbers.size(), strings.size()}) != count + 1)
        scanner_.fail_at(at, "expected a list of one type, found two");
    } while (scanner_.accept(","));
    scanner_.expect("]");
    if (!numbers.empty()) return numbers;
    if (!strings.empty()) return strings;
    return dims;
  }

  void read_output(Graph& graph) {
    GraphOutput output;
    output.value = read_value(graph);
    output.kind = static_cast<OutputKind>(read_word(kOutputKinds, "output, update or gradient"));
    if (output.kind != OutputKind::kOutput) output.target = read_value(graph);
    graph.add_output(output.value, output.kind, output.target);
  }

  Scanner scanner_;
};

}  // namespace

Graph parse(std::string_view text) {
  Graph graph = Parser(text).whole();
  verify(graph);
  return graph;
}

}  // namespace lowtide
