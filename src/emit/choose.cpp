#include "emit/choose.h"

#include <algorithm>

#include "base/check.h"
#include "ir/print.h"

namespace lowtide {

BoundAttrs constant_attrs(const Attrs& attrs) {
  BoundAttrs result;
  for (const auto& [name, value] : attrs) {
    if (const Dim* dim = std::get_if<Dim>(&value)) {
      if (dim->is_constant()) result.set(name, dim->constant());
    } else if (const Shape* shape = std::get_if<Shape>(&value)) {
      if (!std::all_of(shape->begin(), shape->end(), [](const Dim& dim) { return dim.is_constant(); })) continue;
      std::vector<int64_t> plain;
      for (const Dim& dim : *shape) plain.push_back(dim.constant());
      result.set(name, plain);
    } else {
      std::visit(
          [&](const auto& other) {
            using T = std::decay_t<decltype(other)>;
            if constexpr (!std::is_same_v<T, Dim> && !std::is_same_v<T, Shape>) result.set(name, other);
          },
          value);
    }
  }
  return result;
}

const Kernel& choose_kernel(const Graph& graph, NodeId id, std::span<const OperandInfo> inputs,
                            std::span<const OperandInfo> outputs, const PlanOptions& options, KernelChoice& choice) {
  const Node& node = graph.node(id);
  const BoundAttrs attrs = constant_attrs(node.attrs);
  const KernelQuery query{node.op, inputs, outputs, &attrs};
  auto disabled = [&](const Kernel& kernel) {
    const std::vector<std::string>& names = options.disabled_kernels;
    return std::find_if(names.begin(), names.end(), [&](const std::string& name) {
             return name == kernel.name || name == kernel.provider;
           }) != names.end();
  };
  for (const Kernel& kernel : kernels_of(node.op)) {
    const char* refusal = disabled(kernel) ? "switched off" : kernel.supports ? kernel.supports(query) : nullptr;
    if (refusal == nullptr) {
      choice.kernel = kernel.name;
      return kernel;
    }
    choice.refusals.push_back(concat(kernel.name, ": ", refusal));
  }
  LT_USER_FAIL(ErrorKind::kUnsupported, "no kernel runs ", describe(graph, id), ": ", join(choice.refusals, "; "));
}

}  // namespace lowtide
