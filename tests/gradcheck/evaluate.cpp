#include "evaluate.h"

#include <cstring>

#include "base/check.h"
#include "kernels/prepared.h"

namespace lowtide {

static TensorRef reference_to(const Tensor& tensor) {
  TensorRef ref;
  ref.data = const_cast<std::byte*>(tensor.bytes.data());
  ref.dtype = tensor.dtype;
  ref.rank = static_cast<int32_t>(tensor.sizes.size());
  ref.present = true;
  int64_t stride = 1;
  for (int i = ref.rank - 1; i >= 0; --i) {
    ref.sizes[i] = tensor.sizes[static_cast<size_t>(i)];
    ref.strides[i] = stride;
    stride *= ref.sizes[i];
  }
  return ref;
}

static Tensor empty_tensor(DType dtype, std::vector<int64_t> sizes) {
  Tensor tensor{dtype, std::move(sizes), {}};
  int64_t count = 1;
  for (int64_t size : tensor.sizes) count *= size;
  // Any bytes may be in an output before a kernel writes it.
  tensor.bytes.assign(static_cast<size_t>(count * size_bytes(dtype)), std::byte{0xa5});
  return tensor;
}

static Tensor empty_like(const TensorType& type) {
  std::vector<int64_t> sizes;
  for (const Dim& dim : type.shape) sizes.push_back(dim.constant());
  return empty_tensor(type.dtype, std::move(sizes));
}

static BoundAttrs bind(const Attrs& attrs) {
  BoundAttrs bound;
  for (const auto& [name, value] : attrs)
    std::visit(
        [&, &name = name](const auto& typed) {
          using T = std::decay_t<decltype(typed)>;
          if constexpr (std::is_same_v<T, Dim>) {
            bound.set(name, typed.constant());
          } else if constexpr (std::is_same_v<T, std::vector<Dim>>) {
            bound.set(name, attrs.is(name));
          } else {
            bound.set(name, typed);
          }
        },
        value);
  return bound;
}

static void run(Op op, std::span<const TensorRef> inputs, std::span<const TensorRef> outputs, const BoundAttrs& attrs,
                uint64_t key) {
  const Kernel* kernel = find_kernel(concat("reference.", name(op)));
  LT_CHECK(kernel != nullptr, "no reference kernel of ", name(op));
  BoundCall call{{inputs, outputs, nullptr, 0, key}, &attrs};
  std::vector<std::max_align_t> scratch;
  if (kernel->scratch_bytes) {
    call.scratch_bytes = kernel->scratch_bytes(call);
    scratch.resize(static_cast<size_t>(call.scratch_bytes) / sizeof(std::max_align_t) + 1);
    call.scratch = scratch.data();
  }
  const KernelStatus status = run_once(*kernel, call);
  LT_USER_CHECK(ErrorKind::kRuntime, status == nullptr, name(op), ": ", status);
}

// The elements of x that a view shows, in strides over x's bytes.
static TensorRef view_of(const Tensor& x, const Node& node, const Tensor& y) {
  const TensorRef base = reference_to(x);
  TensorRef view = reference_to(y);  // sizes
  view.data = base.data;
  switch (node.op) {
    case Op::kTranspose: {
      const std::vector<int64_t> perm = node.attrs.is("perm");
      for (size_t i = 0; i < perm.size(); ++i) view.strides[i] = base.strides[perm[i]];
      break;
    }
    case Op::kSlice: {
      const int64_t axis = node.attrs.i("axis");
      std::copy(base.strides, base.strides + kMaxRank, view.strides);
      view.data = static_cast<std::byte*>(base.data) + node.attrs.i("start") * base.strides[axis] * size_bytes(x.dtype);
      view.strides[axis] *= node.attrs.i("step");
      break;
    }
    case Op::kExpand:
      for (int i = 0; i < view.rank; ++i) {
        const int from = i - (view.rank - base.rank);
        view.strides[i] = from < 0 || base.sizes[from] == 1 ? 0 : base.strides[from];
      }
      break;
    default: break;  // the same elements in the same order
  }
  return view;
}

static void evaluate_node(const Graph& graph, const Node& node, Tensors& values, uint64_t key) {
  std::vector<TensorRef> inputs, outputs;
  for (ValueId output : node.outputs) {
    if (output) values[output] = empty_like(graph.type(output));
    outputs.push_back(output ? reference_to(values[output]) : TensorRef{});
  }
  if (is_view(node.op)) {
    inputs.push_back(view_of(values.at(node.inputs[0]), node, values[node.outputs[0]]));
    return run(Op::kCopy, inputs, outputs, {}, key);
  }
  for (ValueId input : node.inputs) inputs.push_back(input ? reference_to(values.at(input)) : TensorRef{});
  run(node.op, inputs, outputs, bind(node.attrs), key);
}

void evaluate(const Graph& graph, Tensors& values, uint64_t random_key) {
  for (NodeId id : graph.order())
    if (graph.node(id).op != Op::kYieldOp) evaluate_node(graph, graph.node(id), values, random_key);
}

Tensor make_tensor(DType dtype, std::vector<int64_t> sizes, const std::vector<double>& values) {
  const Tensor from{DType::kF64, sizes, [&] {
                      std::vector<std::byte> bytes(values.size() * sizeof(double));
                      if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
                      return bytes;
                    }()};
  Tensor tensor = empty_tensor(dtype, std::move(sizes));
  const TensorRef input = reference_to(from), output = reference_to(tensor);
  BoundAttrs attrs;
  attrs.set("to", dtype);
  run(Op::kCast, {&input, 1}, {&output, 1}, attrs, 0);
  return tensor;
}

std::vector<double> values_of(const Tensor& tensor) {
  Tensor result = empty_tensor(DType::kF64, tensor.sizes);
  const TensorRef input = reference_to(tensor), output = reference_to(result);
  BoundAttrs attrs;
  attrs.set("to", DType::kF64);
  run(Op::kCast, {&input, 1}, {&output, 1}, attrs, 0);
  std::vector<double> values(result.bytes.size() / sizeof(double));
  if (!values.empty()) std::memcpy(values.data(), result.bytes.data(), result.bytes.size());
  return values;
}

}  // namespace lowtide
