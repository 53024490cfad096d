#include "ir/excerpt.h"

#include <map>
#include <set>

#include "base/check.h"

namespace lowtide {

namespace {

class Excerpt {
 public:
  Excerpt(const Graph& graph, const std::vector<ValueId>& inputs, const DimValues& sizes)
      : graph_(graph), cuts_(inputs.begin(), inputs.end()), out_(graph.name()) {
    for (const auto& [name, size] : sizes) sizes_[name] = Dim(size);
  }

  Graph run(const std::vector<ValueId>& outputs) {
    for (ValueId output : outputs) cuts_.erase(output);
    std::vector<ValueId> pending = outputs;
    std::set<NodeId> wanted;
    std::set<ValueId> inputs;
    while (!pending.empty()) {
      const ValueId value = pending.back();
      pending.pop_back();
      if (!value) continue;
      const NodeId producer = graph_.value(value).producer;
      if (is_cut(value)) {
        inputs.insert(value);
      } else if (wanted.insert(producer).second) {
        for (ValueId input : graph_.node(producer).inputs) pending.push_back(input);
      }
    }
    // A node that makes a cut value beside a wanted one makes both.
    std::erase_if(inputs, [&](ValueId input) { return wanted.contains(graph_.value(input).producer); });
    for (ValueId input : inputs) values_[input] = out_.add_input(name(input), type(input), kind_of(input));
    for (NodeId id : graph_.order())
      if (wanted.contains(id)) copy(id);
    for (ValueId output : outputs) out_.add_output(values_.at(output));
    return std::move(out_);
  }

 private:
  // A context has no bytes to give; kernels want to see that a constant is one.
  bool is_cut(ValueId value) const {
    const NodeId producer = graph_.value(value).producer;
    if (!producer || is_yield(graph_.node(producer).op)) return true;
    return cuts_.contains(value) && graph_.type(value).dtype != DType::kContext &&
           !graph_.node(producer).inputs.empty();
  }
  const std::string& name(ValueId value) const { return graph_.value(value).name; }
  InputKind kind_of(ValueId value) const {
    const GraphInput* input = graph_.find_input(value);
    return input != nullptr && input->kind == InputKind::kConstant ? InputKind::kConstant : InputKind::kInput;
  }
  Shape sized(Shape shape) const {
    for (Dim& dim : shape) dim = substitute(dim, sizes_);
    return shape;
  }
  TensorType type(ValueId value) const { return {graph_.type(value).dtype, sized(graph_.type(value).shape)}; }

  void copy(NodeId id) {
    const Node& node = graph_.node(id);
    LT_USER_CHECK(ErrorKind::kUnsupported, node.body == nullptr, "an excerpt through a node with a body");
    std::vector<ValueId> inputs;
    for (ValueId input : node.inputs) inputs.push_back(input ? values_.at(input) : ValueId{});
    std::vector<TensorType> types;
    std::vector<std::string> names;
    std::vector<bool> wanted;
    for (ValueId output : node.outputs) {
      types.push_back(output ? type(output) : TensorType{});
      names.push_back(output ? name(output) : std::string());
      wanted.push_back(output.valid());
    }
    Attrs attrs = node.attrs;
    for (const auto& [key, value] : node.attrs) {
      if (const Dim* dim = std::get_if<Dim>(&value)) attrs.set(key, substitute(*dim, sizes_));
      if (const Shape* dims = std::get_if<Shape>(&value)) attrs.set(key, sized(*dims));
    }
    const NodeId copied = out_.add_node(node.op, inputs, types, std::move(attrs), node.origin, {}, names, wanted);
    out_.edit(copied).target = node.target;
    for (size_t i = 0; i < node.outputs.size(); ++i)
      if (node.outputs[i]) values_[node.outputs[i]] = out_.node(copied).outputs[i];
  }

  const Graph& graph_;
  std::set<ValueId> cuts_;
  Graph out_;
  std::map<std::string, Dim, std::less<>> sizes_;
  std::map<ValueId, ValueId> values_;
};

}  // namespace

Graph excerpt(const Graph& graph, const std::vector<ValueId>& inputs, const std::vector<ValueId>& outputs,
              const DimValues& sizes) {
  return Excerpt(graph, inputs, sizes).run(outputs);
}

}  // namespace lowtide
