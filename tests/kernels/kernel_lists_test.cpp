// Every kernel of the lists against the reference kernel of its op, on every node of the example graphs and of their
// gradients: in each layout that it accepts, in place where it says so, and under several ways of cutting the work,
// which must not change a bit; and none allocates while it runs. A kernel added to a list is covered by that alone.
// Those of PyTorch's library are compared where .venv has PyTorch.
#include <dlfcn.h>
#include <glob.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "../gradcheck/evaluate.h"
#include "base/parallel.h"
#include "base/test_allocations.h"
#include "grad/gradient.h"
#include "ir/print.h"
#include "kernels/blas/plain_gemm.h"
#include "kernels/cpu/isa.h"
#include "kernels/prepared.h"
#include "ops/example_graphs.h"
#include "torch_symbols/torch_symbols.h"

namespace lowtide {
namespace {

constexpr uint64_t kKey = 0x1234567890abcdef;

void chunks_backwards(int64_t begin, int64_t end, int64_t grain, ParallelBody body, void* context) {
  for (int64_t b = begin + (end - begin - 1) / grain * grain; b >= begin; b -= grain)
    body(b, std::min(end, b + grain), context);
}

// Bytes and how they are walked.
struct Buffer {
  std::vector<double> bytes;  // aligned for every dtype
  TensorRef ref;
};

enum class Order { kRowMajor, kChannelsLast, kTransposed, kPadded, kHeadsLast };

int64_t round_up(int64_t value) { return (value + 7) / 8; }

// A tensor with the sizes and dtype of `like` in this order, filled with `byte`.
Buffer make_buffer(const TensorRef& like, Order order, uint8_t byte) {
  Buffer buffer;
  buffer.ref = like;
  TensorRef& ref = buffer.ref;
  int dims[kMaxRank];  // slowest first
  for (int i = 0; i < ref.rank; ++i) dims[i] = i;
  if (order == Order::kTransposed && ref.rank >= 2) std::swap(dims[ref.rank - 1], dims[ref.rank - 2]);
  if (order == Order::kHeadsLast) std::swap(dims[1], dims[2]);
  if (order == Order::kChannelsLast) std::rotate(dims + 1, dims + 2, dims + ref.rank);
  int64_t stride = 1;
  for (int i = ref.rank - 1; i >= 0; --i) {
    ref.strides[dims[i]] = stride;
    stride *= ref.sizes[dims[i]];
    if (order == Order::kPadded && i == ref.rank - 1) stride += 3;
  }
  buffer.bytes.resize(static_cast<size_t>(round_up(stride * size_bytes(ref.dtype)) + 1));
  std::memset(buffer.bytes.data(), byte, buffer.bytes.size() * sizeof(double));
  ref.data = buffer.bytes.data();
  return buffer;
}

void copy(const TensorRef& from, const TensorRef& to) {
  run_once(kernels_of(Op::kCopy).back(), {{{&from, 1}, {&to, 1}}});
}

TensorRef row_major(Tensor& tensor) {
  TensorRef ref;
  ref.data = tensor.bytes.data();
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

Layout layout_of(const TensorRef& ref, Order order) {
  if (ref.is_row_major()) return Layout::kRowMajor;
  switch (order) {
    case Order::kChannelsLast: return Layout::kChannelsLast;
    case Order::kPadded:
    case Order::kHeadsLast: return Layout::kInnerDense;
    default: return Layout::kStrided;
  }
}

// The order in which an operand is given to a kernel that is offered `order`.
Order order_for(Accept accept, const TensorRef& ref, Order order) {
  switch (accept) {
    case Accept::kChannelsLast: return ref.rank == 4 ? Order::kChannelsLast : Order::kRowMajor;
    case Accept::kDense:
      return order == Order::kChannelsLast && ref.rank == 4 ? Order::kChannelsLast : Order::kRowMajor;
    case Accept::kInnerDense: return order == Order::kPadded ? order : Order::kRowMajor;
    case Accept::kAny: return order == Order::kChannelsLast && ref.rank != 4 ? Order::kRowMajor : order;
    default: return Order::kRowMajor;
  }
}

double terms_of(const Kernel& kernel, const std::vector<Tensor*>& inputs) {
  const OpCategory category = info(kernel.op).category;
  if (category == OpCategory::kPointwise || category == OpCategory::kRandom) return 1;
  size_t most = 1;
  for (const Tensor* input : inputs)
    if (input != nullptr) most = std::max(most, input->bytes.size() / static_cast<size_t>(size_bytes(input->dtype)));
  return static_cast<double>(most);
}

// How far a result may be from the reference's, which computes in doubles and rounds once, relative to 1 + |expected|.
// Everything but f64 is computed in f32: a function is within eight units of its last place, a sum of n terms, no more
// than the largest operand has, strays by two for the root of n. bf16 and f16 are rounded once more, to a neighbour at
// worst, `roundings` times.
double tolerance(DType dtype, double terms, double roundings) {
  const double unit = dtype == DType::kF64 ? 0x1p-52 : 0x1p-23;
  const double stored = dtype == DType::kBF16 ? 0x1p-7 : dtype == DType::kF16 ? 0x1p-10 : 0;
  return is_float(dtype) ? roundings * stored + unit * (8 + 2 * std::sqrt(terms)) : 0;
}

// Where oneDNN does not know 16 bits (CPUs without AVX-512), PyTorch adds the weight's gradient up in 16 bits, an image
// after another.
double roundings_of(const Kernel& kernel, const std::vector<Tensor*>& inputs) {
  const bool is_pytorchs = std::string_view(kernel.name).starts_with("aten.");
  return is_pytorchs && kernel.op == Op::kConvGrad ? static_cast<double>(inputs[0]->sizes[0]) : 1;
}

class KernelLists : public testing::Test {
 protected:
  void SetUp() override { set_plain_gemm(); }
  void TearDown() override {
    set_libraries({});
    set_parallel_for(nullptr, 1);
  }
};

std::vector<std::byte> bytes_of(const std::vector<Buffer>& buffers) {
  std::vector<std::byte> all;
  for (const Buffer& buffer : buffers) {
    const auto* begin = reinterpret_cast<const std::byte*>(buffer.bytes.data());
    all.insert(all.end(), begin, begin + buffer.bytes.size() * sizeof(double));
  }
  return all;
}

struct Case {
  const Kernel& kernel;
  std::vector<Tensor*> inputs;   // null: absent
  std::vector<Tensor*> outputs;  // expected values
  BoundAttrs attrs;
};

// Prepares a kernel as a binding does: of operands without data, and nothing of them or of the attributes is left when
// it runs. Returns its bytes of scratch.
int64_t prepare(const Kernel& kernel, const KernelCall& call, BoundAttrs attrs, void* state) {
  std::vector<TensorRef> inputs(call.inputs.begin(), call.inputs.end());
  std::vector<TensorRef> outputs(call.outputs.begin(), call.outputs.end());
  for (std::vector<TensorRef>* refs : {&inputs, &outputs})
    for (TensorRef& ref : *refs) ref.data = nullptr;
  const BoundCall bound{{inputs, outputs}, &attrs};
  if (kernel.prepare) kernel.prepare(bound, state);
  return kernel.scratch_bytes ? kernel.scratch_bytes(bound) : 0;
}

// Kernels that may allocate while they run.
bool may_allocate(const Kernel& kernel) {
  // PyTorch's functions make tensors of what they are given, and oneDNN's its primitives.
  return kernel.provider == std::string_view("aten");
}

// Runs with operands in `order`; in_place >= 0: that output in the buffer of that input. Nothing if the kernel refuses.
std::optional<std::vector<Buffer>> run(const Case& test, Order order, int in_place = -1, size_t result = 0) {
  const Kernel& kernel = test.kernel;
  std::vector<Buffer> inputs, outputs;
  std::vector<OperandInfo> input_infos, output_infos;
  for (size_t i = 0; i < test.inputs.size(); ++i) {
    inputs.emplace_back();
    input_infos.emplace_back();
    if (test.inputs[i] == nullptr) continue;
    const TensorRef ref = row_major(*test.inputs[i]);
    const Order given = order_for(kernel.rules.input(i), ref, order);
    inputs.back() = make_buffer(ref, given, 0x5a);
    copy(ref, inputs.back().ref);
    input_infos.back() = {ref.dtype, ref.rank, true, layout_of(inputs.back().ref, given)};
    std::copy(ref.sizes, ref.sizes + ref.rank, input_infos.back().sizes.begin());
  }
  for (Tensor* expected : test.outputs) {
    outputs.emplace_back();
    output_infos.emplace_back();
    if (expected == nullptr) continue;
    const TensorRef ref = row_major(*expected);
    const OutputLayout layout = kernel.rules.output(outputs.size() - 1).layout;
    Order made = Order::kRowMajor;
    if (layout == OutputLayout::kAsAsked) made = order == Order::kChannelsLast && ref.rank != 4 ? made : order;
    if (layout == OutputLayout::kChannelsLast && ref.rank == 4) made = Order::kChannelsLast;
    if (layout == OutputLayout::kHeadsLast && ref.rank == 4) made = Order::kHeadsLast;
    for (size_t i = 0; layout == OutputLayout::kFollowsInput && ref.rank == 4 && i < inputs.size(); ++i) {
      if (!inputs[i].ref.present || !std::equal(ref.sizes, ref.sizes + 4, inputs[i].ref.sizes)) continue;
      if (input_infos[i].layout == Layout::kChannelsLast) made = Order::kChannelsLast;
      break;
    }
    outputs.back() = make_buffer(ref, made, 0xa5);
    output_infos.back() = {ref.dtype, ref.rank, true, layout_of(outputs.back().ref, made)};
  }
  const KernelQuery query{kernel.op, input_infos, output_infos, &test.attrs};
  if (kernel.supports && kernel.supports(query) != nullptr) return std::nullopt;
  const size_t source = static_cast<size_t>(in_place);
  if (in_place >= 0) {
    if (source >= inputs.size() || result >= outputs.size()) return std::nullopt;
    const TensorRef &from = inputs[source].ref, &to = outputs[result].ref;
    const bool same = from.present && to.present && from.dtype == to.dtype && from.rank == to.rank &&
                      std::equal(from.sizes, from.sizes + from.rank, to.sizes) &&
                      std::equal(from.strides, from.strides + from.rank, to.strides);
    if (!same) return std::nullopt;
    outputs[result].ref.data = from.data;
  }
  std::vector<TensorRef> input_refs, output_refs;
  for (const Buffer& buffer : inputs) input_refs.push_back(buffer.ref);
  for (const Buffer& buffer : outputs) output_refs.push_back(buffer.ref);
  KernelCall call{input_refs, output_refs, nullptr, 0, kKey};
  constexpr uint64_t kPastState = 0x6b6b6b6b6b6b6b6b;
  std::vector<uint64_t> state((state_bytes_of(kernel, call) + 7) / 8 + 1, kPastState);
  call.scratch_bytes = prepare(kernel, call, test.attrs, state.data());
  EXPECT_EQ(state.back(), kPastState) << "wrote past its state";
  if (kernel.prepare) call.state = state.data();
  const size_t canary = 64, words = static_cast<size_t>(round_up(call.scratch_bytes));
  std::vector<double> memory(words + canary + 8, std::nan(""));
  double* scratch = memory.data();
  while (reinterpret_cast<uintptr_t>(scratch) % 64 != 0) ++scratch;
  std::fill(scratch + words, memory.data() + memory.size(), 42.0);
  call.scratch = scratch;
  const int64_t before = allocations;
  const KernelStatus status = kernel.run(call);
  const int64_t allocated = allocations - before;
  EXPECT_EQ(status, nullptr);
  EXPECT_TRUE(allocated == 0 || may_allocate(kernel)) << "allocated " << allocated << " times while it ran";
  for (double* past = scratch + words; past < memory.data() + memory.size(); ++past)
    EXPECT_EQ(*past, 42.0) << "wrote past its scratch";
  if (in_place >= 0) {
    outputs[result].bytes = inputs[source].bytes;
    outputs[result].ref.data = outputs[result].bytes.data();
  }
  return outputs;
}

// What a result, or what it was made of, was rounded to before it was stored.
DType rounded_to(const Case& test, DType stored) {
  // The gradient of an f32 mask: the reference takes dy y from the y that attention rounded.
  if (test.kernel.op == Op::kAttentionGrad) return test.inputs[4]->dtype;
  const DType computes = computed_dtype(test.attrs, stored);
  return is_float(stored) && is_half(computes) ? computes : stored;
}

void expect_close(const Case& test, const Buffer& found, Tensor& expected, double terms) {
  Tensor dense = expected;
  copy(found.ref, row_major(dense));
  const std::vector<double> have = values_of(dense), want = values_of(expected);
  const double roundings = roundings_of(test.kernel, test.inputs);
  const double allowed = tolerance(rounded_to(test, expected.dtype), terms, roundings);
  for (size_t i = 0; i < want.size(); ++i) {
    if (have[i] == want[i] || (std::isnan(have[i]) && std::isnan(want[i]))) continue;
    ASSERT_LE(std::abs(have[i] - want[i]), allowed * (1 + std::abs(want[i]))) << "element " << i << ": " << have[i];
  }
}

void check(const Case& test, std::set<std::string>& seen) {
  const double terms = terms_of(test.kernel, test.inputs);
  for (Order order : {Order::kRowMajor, Order::kChannelsLast, Order::kTransposed, Order::kPadded}) {
    SCOPED_TRACE(testing::Message() << test.kernel.name << " order " << static_cast<int>(order));
    set_parallel_for(nullptr, 1);
    const auto serial = run(test, order);
    if (!serial) continue;
    seen.insert(test.kernel.name);
    for (size_t i = 0; i < test.outputs.size(); ++i) {
      if (test.outputs[i]) expect_close(test, (*serial)[i], *test.outputs[i], terms);
    }
    set_parallel_for(chunks_backwards, 3);
    EXPECT_EQ(bytes_of(*serial), bytes_of(*run(test, order))) << "cutting the work differently changed bits";
    for (size_t result = 0; result < test.outputs.size(); ++result) {
      const OutputRule rule = test.kernel.rules.output(result);
      for (int source : {rule.takes, rule.else_takes}) {
        const auto placed = source >= 0 ? run(test, order, source, result) : std::nullopt;
        if (!placed) continue;
        for (size_t i = 0; i < test.outputs.size(); ++i)
          if (test.outputs[i]) expect_close(test, (*placed)[i], *test.outputs[i], terms);
      }
    }
  }
  set_parallel_for(nullptr, 1);
}

// As the planner hands attributes over once sizes are known.
BoundAttrs bound(const Attrs& attrs) {
  BoundAttrs result;
  for (const auto& [name, value] : attrs)
    std::visit(
        [&, &name = name](const auto& typed) {
          using T = std::decay_t<decltype(typed)>;
          if constexpr (std::is_same_v<T, Dim>) {
            result.set(name, typed.constant());
          } else if constexpr (std::is_same_v<T, std::vector<Dim>>) {
            result.set(name, attrs.is(name));
          } else {
            result.set(name, typed);
          }
        },
        value);
  return result;
}

using Chosen = bool (*)(const Kernel&);

void check_graph(const Graph& graph, Tensors& values, Chosen chosen, std::set<std::string>& seen) {
  evaluate(graph, values, kKey);
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (is_view(node.op) || node.op == Op::kYieldOp) continue;
    for (const Kernel& kernel : kernels_of(node.op)) {
      if (!chosen(kernel)) continue;
      Case test{kernel, {}, {}, bound(node.attrs)};
      for (ValueId input : node.inputs) test.inputs.push_back(input ? &values.at(input) : nullptr);
      for (ValueId output : node.outputs) test.outputs.push_back(output ? &values.at(output) : nullptr);
      SCOPED_TRACE(describe(graph, id));
      check(test, seen);
      if (testing::Test::HasFailure()) return;
    }
  }
}

// Products over windows leave convolutions to PyTorch's library unless vectors have eight lanes, those of volumes
// unless windows are large; tests of their room run them on all instruction sets.
bool is_for_other_sizes(const Kernel& kernel) {
  const std::string_view name = kernel.name;
  if (name == "cpu.Conv.volumes" || name == "cpu.ConvGrad.volumes") return true;
  return name.ends_with(".windows") && cpu::isa() != cpu::Isa::kAvx2;
}

// The chosen kernels of the lists on every example; each must have met one that it takes.
void check_kernels(Chosen chosen) {
  std::set<std::string> seen;
  for (const Example& example : example_graphs()) {
    for (DType real : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
      SCOPED_TRACE(testing::Message() << example.name << " " << name(real));
      const Graph forward = build_example(example, real);
      Tensors values;
      size_t next = 0;
      bool differentiable = false;
      for (const ExampleInput& input : example.inputs) {
        if (input.kind != ExampleInput::Kind::kTensor) continue;
        const ValueId id = forward.inputs()[next].value;
        values[id] = make_tensor(forward.type(id).dtype, input.shape, example_values(input, 7 + next++));
        differentiable |= input.requires_grad;
      }
      Tensors forward_values = values;
      check_graph(forward, forward_values, chosen, seen);
      if (testing::Test::HasFailure()) return;
      if (!differentiable) continue;
      const Graph training = build_gradient(forward);
      if (!training.yield()) continue;
      for (ValueId dy : training.node(training.yield()).outputs) {
        if (!dy) continue;
        ExampleInput like;
        for (const Dim& dim : training.type(dy).shape) like.shape.push_back(dim.constant());
        values[dy] = make_tensor(training.type(dy).dtype, like.shape, example_values(like, 99));
      }
      check_graph(training, values, chosen, seen);
      if (testing::Test::HasFailure()) return;
    }
  }
  for (const Kernel& kernel : all_kernels()) {
    if (!chosen(kernel)) continue;
    EXPECT_TRUE(seen.contains(kernel.name) || is_for_other_sizes(kernel))
        << kernel.name << " met no example that it takes";
  }
}

bool is_of_pytorch(const Kernel& kernel) { return kernel.provider == std::string_view("aten"); }
// No node of a graph has the operand that it adds to.
bool is_of_loops(const Kernel& kernel) { return kernel.name == std::string_view("cpu.ReduceSum.onto"); }

TEST_F(KernelLists, EveryKernelAgreesWithTheReference) {
  check_kernels([](const Kernel& kernel) { return !is_of_pytorch(kernel) && !is_of_loops(kernel); });
}

// Whether this process has PyTorch's library now, from .venv.
bool load_pytorch() {
  glob_t found{};
  const bool any = glob(".venv/lib/python*/site-packages/torch/lib/libtorch_cpu.so", 0, nullptr, &found) == 0;
  const bool loaded = any && dlopen(found.gl_pathv[0], RTLD_NOW | RTLD_GLOBAL) != nullptr;
  globfree(&found);
  return loaded;
}

TEST_F(KernelLists, KernelsOfPyTorchAgreeWithTheReference) {
  ASSERT_TRUE(load_pytorch()) << "no PyTorch in .venv, which ./dev build makes";
  ASSERT_TRUE(install_torch(load_torch_symbols()).convolution);
  check_kernels(is_of_pytorch);
}

}  // namespace
}  // namespace lowtide
