// Every gradient rule against finite differences of the forward graph, in f64 on the reference kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "evaluate.h"
#include "grad/gradient.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "ops/example_graphs.h"
#include "ops/rule.h"

namespace lowtide {
namespace {

constexpr DType kReal = DType::kF64;

std::vector<int64_t> sizes_of(const TensorType& type) {
  std::vector<int64_t> sizes;
  for (const Dim& dim : type.shape) sizes.push_back(dim.constant());
  return sizes;
}

Tensors example_tensors(const Graph& graph, const Example& example) {
  Tensors values;
  size_t next = 0;
  for (const ExampleInput& input : example.inputs) {
    if (input.kind != ExampleInput::Kind::kTensor) continue;
    const ValueId id = graph.inputs()[next].value;
    values[id] = make_tensor(graph.type(id).dtype, input.shape, example_values(input, 100 + next));
    ++next;
  }
  return values;
}

// sum(weights * first output) at these inputs
double weighted_sum(const Graph& forward, Tensors values, const std::vector<double>& weights) {
  evaluate(forward, values);
  const std::vector<double> y = values_of(values.at(forward.outputs()[0].value));
  double sum = 0;
  for (size_t i = 0; i < y.size(); ++i) sum += weights[i] * y[i];
  return sum;
}

// Every gradient of the first output against differences; returns how many inputs have one.
size_t check_gradients(const Graph& forward, const Tensors& inputs) {
  const Graph training = build_gradient(forward);
  Tensors values = inputs;
  const ValueId y = training.node(training.yield()).inputs[0], dy = training.node(training.yield()).outputs.at(0);
  std::mt19937_64 generator(3);
  std::vector<double> weights(static_cast<size_t>(numel(training.type(y).shape).constant()));
  for (double& weight : weights) weight = static_cast<double>(generator() >> 11) * 0x1p-52 - 1;
  values[dy] = make_tensor(training.type(dy).dtype, sizes_of(training.type(y)), weights);
  evaluate(training, values);

  size_t gradients = 0;
  for (const GraphOutput& output : training.outputs()) {
    if (output.kind != OutputKind::kGradient) continue;
    ++gradients;
    const std::vector<double> found = values_of(values.at(output.value)), x = values_of(inputs.at(output.target));
    EXPECT_EQ(found.size(), x.size());
    for (size_t i = 0; i < x.size() && !::testing::Test::HasFailure(); ++i) {
      constexpr double kStep = 1e-5;
      const auto sum_at = [&](double moved) {
        std::vector<double> elements = x;
        elements[i] = moved;
        Tensors at = inputs;
        at[output.target] = make_tensor(kReal, inputs.at(output.target).sizes, elements);
        return weighted_sum(forward, std::move(at), weights);
      };
      const double expected = (sum_at(x[i] + kStep) - sum_at(x[i] - kStep)) / (2 * kStep);
      EXPECT_NEAR(found[i], expected, 1e-7 + 1e-6 * std::abs(expected))
          << "element " << i << " of the gradient of %" << training.value(output.target).name << " at " << x[i]
          << " in\n"
          << print(training);
    }
  }
  return gradients;
}

class GradientCheck : public ::testing::TestWithParam<Example> {};

TEST_P(GradientCheck, AgreesWithFiniteDifferences) {
  const Graph forward = build_example(GetParam(), kReal);
  const auto requires_grad = [](const ExampleInput& input) { return input.requires_grad; };
  const auto expected = std::count_if(GetParam().inputs.begin(), GetParam().inputs.end(), requires_grad);
  EXPECT_EQ(check_gradients(forward, example_tensors(forward, GetParam())), static_cast<size_t>(expected));
}

std::vector<Example> differentiable_examples() {
  std::vector<Example> found;
  for (const Example& example : example_graphs()) {
    if (!is_differentiable(example.op)) continue;
    const Graph graph = build_example(example, kReal);
    const bool has_gradient = std::any_of(example.inputs.begin(), example.inputs.end(),
                                          [](const ExampleInput& input) { return input.requires_grad; });
    if (has_gradient && is_float(graph.type(graph.outputs()[0].value).dtype)) found.push_back(example);
  }
  return found;
}

std::string test_name(const ::testing::TestParamInfo<Example>& info) {
  std::string name;
  for (char c : info.param.name) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return concat(name, "_", info.index);
}

// Whole blocks: accumulation, slices of one value, shared parameters.
constexpr const char* kBlocks[] = {
    R"(graph @attention(%ids: i64[2, 3] input, %wte: f64[6, 4] param, %lw: f64[4] param, %lb: f64[4] param, %w: f64[4, 12] param, %c: f64[12] param, %p: f64[4, 4] param) {
  %h: f64[2, 3, 4] = Gather(axis=0) %wte, %ids
  %n: f64[2, 3, 4], %m: f64[2, 3], %i: f64[2, 3] = LayerNormalization(axis=2, epsilon=1e-05) %h, %lw, %lb
  %n2: f64[6, 4] = Reshape(shape=[6, 4]) %n
  %qkv2: f64[6, 12] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=false) %n2, %w, %c
  %qkv: f64[2, 3, 12] = Reshape(shape=[2, 3, 12]) %qkv2
  %q: f64[2, 3, 4] = Slice(axis=2, end=4, start=0, step=1) %qkv
  %k: f64[2, 3, 4] = Slice(axis=2, end=8, start=4, step=1) %qkv
  %v: f64[2, 3, 4] = Slice(axis=2, end=12, start=8, step=1) %qkv
  %q4: f64[2, 3, 2, 2] = Reshape(shape=[2, 3, 2, 2]) %q
  %k4: f64[2, 3, 2, 2] = Reshape(shape=[2, 3, 2, 2]) %k
  %v4: f64[2, 3, 2, 2] = Reshape(shape=[2, 3, 2, 2]) %v
  %qt: f64[2, 2, 3, 2] = Transpose(perm=[0, 2, 1, 3]) %q4
  %kt: f64[2, 2, 3, 2] = Transpose(perm=[0, 2, 1, 3]) %k4
  %vt: f64[2, 2, 3, 2] = Transpose(perm=[0, 2, 1, 3]) %v4
  %a: f64[2, 2, 3, 2], %l: f64[2, 2, 3] = Attention(dropout=0.1, is_causal=true, scale=0.7, stream=0) %qt, %kt, %vt
  %at: f64[2, 3, 2, 2] = Transpose(perm=[0, 2, 1, 3]) %a
  %ar: f64[2, 3, 4] = Reshape(shape=[2, 3, 4]) %at
  %o: f64[2, 3, 4] = MatMul %ar, %p
  %g: f64[2, 3, 4] = FastGelu %o
  %r: f64[2, 3, 4] = Add %g, %h
  %s: f64[2, 3, 4] = MatMul %r, %p
  %e: f64[2, 3, 6] = FusedMatMul(alpha=1.0, transA=false, transB=true) %s, %wte
  %f: f64[6, 6] = Reshape(shape=[6, 6]) %e
  %t: i64[6] = Reshape(shape=[6]) %ids
  %loss: f64[], %z: f64[6] = SoftmaxCrossEntropyLoss(ignore_index=-100, label_smoothing=0.0, reduction="mean") %f, %t
  return %loss output
})",
    R"(graph @convolution(%x: f64[2, 2, 5, 5] input grad, %w: f64[3, 2, 3, 3] param, %u: f64[3, 3, 1, 1] param, %s: f64[3] param, %c: f64[3] param, %rm: f64[3] buffer, %rv: f64[3] buffer) {
  %a: f64[2, 3, 5, 5] = Conv(dilations=[1, 1], group=1, pads=[1, 1, 1, 1], strides=[1, 1]) %x, %w
  %b: f64[2, 3, 5, 5], %m: f64[3], %i: f64[3], %nm: f64[3], %nv: f64[3] = BatchNormalization(epsilon=1e-05, momentum=0.1) %a, %s, %c, %rm, %rv
  %r: f64[2, 3, 5, 5] = Swish %b
  %d: f64[2, 3, 5, 5] = Conv(dilations=[1, 1], group=1, pads=[0, 0, 0, 0], strides=[1, 1]) %r, %u
  %e: f64[2, 3, 5, 5] = Add %d, %a
  %p: f64[2, 3, 2, 2] = AveragePool(ceil_mode=false, count_include_pad=true, kernel_shape=[2, 2], pads=[0, 0, 0, 0], strides=[2, 2]) %e
  %y: f64[2, 3] = ReduceMean(axes=[2, 3], keepdims=false) %p
  return %y output, %nm update %rm, %nv update %rv
})",
    R"(graph @transcripts(%x: f64[12, 2, 7] input grad, %t: i64[2, 5] input, %l: i64[2] input) {
  %p: f64[12, 2, 7] = LogSoftmax(axis=2) %x
  %n: i64[2] = ConstantOfShape(dtype=i64, int_value=12, shape=[2])
  %y: f64[2] = CtcLoss(blank=6, normalised=true, zero_infinity=false) %p, %t, %n, %l
  return %y output
})",
    R"(graph @recurrent(%x: f64[5, 3, 20] input grad, %w: f64[20, 5] param, %h: f64[3, 5] param, %c: f64[3, 5] param, %v: f64[15, 5] param, %u: f64[15, 5] param, %b: f64[15] param, %n: i64[3] input) {
  %y: f64[5, 3, 5], %hn: f64[3, 5], %a: f64[5, 3, 20], %m: f64[5, 3, 5], %cn: f64[3, 5] = Recurrence(cell="lstm", reverse=false) %x, %w, %h, %c, _, %n
  %p: f64[5, 3, 15] = FusedMatMul(alpha=1.0, transA=false, transB=true) %y, %v
  %z: f64[5, 3, 5], %zn: f64[3, 5], %k: f64[5, 3, 20], _, _ = Recurrence(cell="gru", reverse=true) %p, %u, %hn, _, %b, %n
  %s: f64[3, 5] = Mul %cn, %zn
  %r: f64[3] = ReduceSum(axes=[1], keepdims=false) %s
  %t: f64[5, 3] = ReduceSum(axes=[2], keepdims=false) %z
  %o: f64[5, 3] = Add %t, %r
  return %o output
})",
    R"(graph @slices(%x: f64[3, 8] input grad, %w: f64[8] param) {
  %h: f64[3, 8] = Mul %x, %w
  %a: f64[3, 4] = Slice(axis=1, end=4, start=0, step=1) %h
  %b: f64[3, 4] = Slice(axis=1, end=8, start=4, step=1) %h
  %nb: f64[3, 4] = Neg %b
  %rot: f64[3, 8] = Concat(axis=1) %nb, %a
  %mid: f64[3, 4] = Slice(axis=1, end=6, start=2, step=1) %h
  %twice: f64[3, 4] = Slice(axis=1, end=4, start=0, step=1) %h
  %row: f64[1, 8] = Slice(axis=0, end=3, start=2, step=1) %h
  %odd: f64[3, 4] = Slice(axis=1, end=8, start=1, step=2) %h
  %s: f64[3, 4] = Mul %mid, %twice
  %t: f64[3, 4] = Mul %s, %odd
  %u: f64[3, 8] = Mul %rot, %h
  %v: f64[3, 8] = Mul %u, %row
  %z: f64[3, 12] = Concat(axis=1) %v, %t
  return %z output
})",
};

TEST(Blocks, AgreeWithFiniteDifferences) {
  for (const char* text : kBlocks) {
    const Graph forward = parse(text);
    SCOPED_TRACE(forward.name());
    Tensors inputs;
    size_t trained = 0;
    for (const GraphInput& input : forward.inputs()) {
      const TensorType& type = forward.type(input.value);
      const bool is_index = type.dtype == DType::kI64;
      const ExampleInput values{.dtype = type.dtype,
                                .shape = sizes_of(type),
                                .low = is_index ? 0.0 : -1.0,
                                .high = is_index ? 5.0 : 1.0,
                                .kinks = {}};
      inputs[input.value] = make_tensor(type.dtype, values.shape, example_values(values, 7 + trained));
      trained += input.requires_grad ? 1 : 0;
    }
    EXPECT_EQ(check_gradients(forward, inputs), trained);
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, GradientCheck, ::testing::ValuesIn(differentiable_examples()), test_name);

}  // namespace

void PrintTo(const Example& example, std::ostream* out) { *out << example.name; }

}  // namespace lowtide
