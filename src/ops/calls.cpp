// Calls into PyTorch: its autograd keeps what it needs in a context, which the backward call hands back.
#include "ops/builder.h"
#include "ops/inference.h"

namespace lowtide {

// Tensor inputs and outputs are operands of the backward call, so that they live as long: PyTorch's saved tensors are
// views of our memory.
void grad_call(GradContext& c) {
  Builder& b = c.b();
  const std::vector<ValueId> inputs = c.node().inputs, outputs = c.node().outputs;
  const ValueId context = b.graph().add_node_output(c.node_id(), {DType::kContext, {}}, "ctx");
  std::vector<ValueId> operands{context};
  for (size_t i = 0; i < outputs.size(); ++i) operands.push_back(c.dy(i));
  operands.insert(operands.end(), inputs.begin(), inputs.end());
  operands.insert(operands.end(), outputs.begin(), outputs.end());

  std::vector<TensorType> types;
  std::vector<bool> wanted;
  for (size_t i = 0; i < inputs.size(); ++i) {
    types.push_back(inputs[i] ? c.type(inputs[i]) : TensorType{});
    wanted.push_back(c.wants(i));
  }
  const Attrs attrs{{"num_grads", static_cast<int64_t>(outputs.size())},
                    {"num_inputs", static_cast<int64_t>(inputs.size())}};
  const NodeId grad =
      b.graph().add_node(Op::kCallGrad, std::move(operands), std::move(types), attrs, b.origin(), {}, {}, wanted);
  b.graph().edit(grad).target = c.node().target;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (c.wants(i)) c.set(i, c.graph().node(grad).outputs[i]);
}

}  // namespace lowtide
