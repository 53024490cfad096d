#include "ops/rules.h"

#include <iterator>

#include "base/check.h"
#include "ops/builder.h"
#include "ops/inference.h"

namespace lowtide {

std::vector<TensorType> infer_none(const InferArgs& args) { LT_FAIL(name(args.op), " has no inference"); }

static constexpr InferFunction kInfer[] = {
#define LT_OP(name, category, recompute, min_in, max_in, min_out, max_out, infer, grad) infer,
#include "opset/ops.def"
};

InferFunction infer_function(Op op) {
  LT_CHECK(static_cast<size_t>(op) < std::size(kInfer), "no such op: ", static_cast<int>(op));
  const InferFunction found = kInfer[static_cast<size_t>(op)];
  return found == infer_none ? nullptr : found;
}

static void check_operand_count(const InferArgs& args) {
  const OpInfo& op = info(args.op);
  const int count = static_cast<int>(args.inputs.size());
  LT_INFER_CHECK(args, count >= op.min_inputs && count <= op.max_inputs, "takes ", op.min_inputs,
                 op.max_inputs == op.min_inputs ? std::string() : concat(" to ", op.max_inputs), " operands, has ",
                 count);
  for (size_t i = 0; i < static_cast<size_t>(op.min_inputs); ++i)
    LT_INFER_CHECK(args, args.has(i), "operand ", i, " is absent");
}

// Of an op with LT_CONVERTS: as if its operands were cast before and its results behind it.
static std::vector<TensorType> infer_converting(InferFunction function, const InferArgs& args, DType computes) {
  std::vector<TensorType> cast(args.inputs.size());
  std::vector<const TensorType*> operands(args.inputs.begin(), args.inputs.end());
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i] == nullptr || !is_float(operands[i]->dtype) || is_statistic(args.op, i)) continue;
    cast[i] = {computes, operands[i]->shape};
    operands[i] = &cast[i];
  }
  std::vector<TensorType> results = function({args.op, operands, args.attrs, args.ranges});
  if (!args.attrs.has("gives")) return results;
  const size_t count = info(args.op).category == OpCategory::kRow ? 1 : results.size();
  for (size_t i = 0; i < count; ++i)
    if (results[i].dtype == computes) results[i].dtype = args.attrs.t("gives");
  return results;
}

std::vector<TensorType> infer(Op op, std::span<const TensorType* const> inputs, const Attrs& attrs,
                              const DimRanges& ranges) {
  const InferFunction function = infer_function(op);
  LT_CHECK(function != nullptr, name(op), " has no inference");
  const InferArgs args{op, inputs, attrs, ranges};
  check_operand_count(args);
  if (may_convert(op) && attrs.has("computes")) return infer_converting(function, args, attrs.t("computes"));
  return function(args);
}

ValueId GradContext::widened(ValueId value) { return builder_.cast(value, opmath(type(value).dtype)); }
void GradContext::set_rounded(size_t index, ValueId grad) { set(index, builder_.cast(grad, type(in(index)).dtype)); }

std::string with_origin(const std::string& message, const Origin& origin) {
  if (origin.module.empty() && origin.line.empty()) return message;
  const bool both = !origin.module.empty() && !origin.line.empty();
  return concat(message, " (", origin.module, both ? ", " : "", origin.line, ")");
}

static void check_node_types(const Graph& graph, const Node& node) {
  std::vector<const TensorType*> operands;
  for (ValueId input : node.inputs) operands.push_back(input ? &graph.type(input) : nullptr);
  std::vector<TensorType> expected;
  if (is_yield(node.op)) {
    for (int64_t source : node.attrs.is("grads")) {
      LT_USER_CHECK(ErrorKind::kInvalidGraph, source >= 0 && source < static_cast<int64_t>(operands.size()),
                    "YieldOp: grads holds ", source, " but it has ", operands.size(), " operands");
      expected.push_back(*operands[static_cast<size_t>(source)]);
    }
  } else if (!infer_function(node.op)) {
    return;
  } else {
    expected = infer(node.op, operands, node.attrs, graph.ranges());
  }
  LT_USER_CHECK(ErrorKind::kInvalidGraph, expected.size() == node.outputs.size(), name(node.op), ": has ",
                node.outputs.size(), " outputs, inference gives ", expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!node.outputs[i]) continue;
    const Value& output = graph.value(node.outputs[i]);
    LT_USER_CHECK(ErrorKind::kInvalidGraph, !is_no_output(expected[i]), name(node.op), ": %", output.name,
                  " cannot exist");
    LT_USER_CHECK(
        ErrorKind::kInvalidGraph,
        expected[i].dtype == output.type.dtype && shapes_agree(expected[i].shape, output.type.shape, graph.ranges()),
        name(node.op), ": %", output.name, " is ", to_string(output.type), ", inference gives ",
        to_string(expected[i]));
  }
}

void verify_types(const Graph& graph) {
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    try {
      check_node_types(graph, node);
    } catch (const Error& error) {
      throw Error(error.kind(), with_origin(error.what(), node.origin));
    }
    if (node.body) verify_types(*node.body);
  }
}

}  // namespace lowtide
