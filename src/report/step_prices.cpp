#include "report/step_prices.h"

namespace lowtide {

std::vector<StepPrice> step_prices(const Graph& graph, const Program& program, const Binding& binding,
                                   std::span<const int32_t> step_positions, const Prices& prices,
                                   const DimValues& dims) {
  std::vector<StepPrice> result;
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const ProgramStep& step = program.steps[i];
    const bool is_called = step.kind == StepKind::kHostCall || step.kind == StepKind::kBegin;
    if (step.kind != StepKind::kKernel && !is_called) continue;
    const NodeId id = graph.order()[static_cast<size_t>(step_positions[i])];
    const Node& node = graph.node(id);
    StepPrice price;
    price.step = static_cast<int32_t>(i);
    price.op = node.op;
    price.kernels = priced_kernels(node);
    price.dtype = priced_dtype(graph, id);
    const Kernel* kernel = step.kind == StepKind::kKernel ? find_kernel(step.kernel) : nullptr;
    const Op op = kernel != nullptr ? kernel->op : node.op;
    // In blocks of rows products add up, which is another op.
    if (op == node.op || kernel->row_work == RowWork::kProducts) {
      price.cost = cost_at(graph, id, dims);
      price.milliseconds = prices.milliseconds(graph, id, dims);
    } else {
      price.op = op;
      price.kernels = info(op).kernels;
      const TensorRef& copy = binding.refs[static_cast<size_t>(binding.steps[i].first + binding.steps[i].inputs)];
      price.dtype = copy.dtype;
      price.cost.bytes = 2.0 * static_cast<double>(copy.numel() * size_bytes(copy.dtype));
      price.milliseconds = prices.milliseconds(price.kernels, price.dtype, price.cost);
    }
    result.push_back(price);
  }
  return result;
}

}  // namespace lowtide
