// Where a function has no derivative, ours is PyTorch's. The expected numbers come from torch 2.13.
#include <gtest/gtest.h>

#include <limits>

#include "evaluate.h"
#include "grad/gradient.h"
#include "ir/print.h"
#include "ops/builder.h"

namespace lowtide {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Operand {
  std::vector<int64_t> sizes;
  std::vector<double> values;
  std::vector<double> grad;  // empty: no floating operand
};
struct Kink {
  Op op;
  Attrs attrs;
  std::vector<Operand> operands;
};

const std::vector<Dim> kLast{1};

const Kink kKinks[] = {
    {Op::kMax, {}, {{{3}, {1, 2, 3}, {.5, 0, 1}}, {{3}, {1, 5, 0}, {.5, 1, 0}}}},
    {Op::kMin, {}, {{{3}, {1, 2, 3}, {.5, 1, 0}}, {{3}, {1, 5, 0}, {.5, 0, 1}}}},
    {Op::kAbs, {}, {{{3}, {-1, 0, 1}, {-1, 0, 1}}}},
    {Op::kRelu, {}, {{{3}, {-1, 0, 1}, {0, 0, 1}}}},
    {Op::kLeakyRelu, {{"alpha", 0.25}}, {{{2}, {0, -1}, {.25, .25}}}},
    {Op::kClip, {{"min", -1.0}, {"max", 1.0}}, {{{5}, {-2, -1, 0, 1, 2}, {0, 1, 1, 1, 0}}}},
    {Op::kHardSwish, {}, {{{2}, {-3, 3}, {0, 1}}}},
    {Op::kHardSigmoid, {}, {{{2}, {-3, 3}, {0, 0}}}},
    {Op::kSoftplus, {{"beta", 1.0}, {"threshold", 1.0}}, {{{2}, {1, 1.5}, {0.7310585786300049, 1}}}},
    {Op::kSqrt, {}, {{{2}, {0, 4}, {kInf, .25}}}},
    {Op::kAtan2, {}, {{{2}, {0, 1}, {0, 0}}, {{2}, {0, 0}, {0, -1}}}},
    {Op::kPow, {}, {{{3}, {0, 0, 2}, {0, 0, 0}}, {{3}, {0, 2, 0}, {0, 0, 0.6931471805599453}}}},
    {Op::kMod, {}, {{{2}, {5, -5}, {1, 1}}, {{2}, {3, 3}, {-1, 2}}}},
    {Op::kMod, {{"fmod", true}}, {{{2}, {5, -5}, {1, 1}}, {{2}, {3, 3}, {-1, 1}}}},
    {Op::kReduceMax,
     {{"axes", kLast}, {"keepdims", false}},
     {{{2, 3}, {1, 3, 3, 2, 2, 2}, {0, .5, .5, 1. / 3, 1. / 3, 1. / 3}}}},
    {Op::kReduceMin,
     {{"axes", kLast}, {"keepdims", true}},
     {{{2, 3}, {1, 1, 3, 2, 2, 2}, {.5, .5, 0, 1. / 3, 1. / 3, 1. / 3}}}},
    {Op::kReduceProd,
     {{"axes", kLast}, {"keepdims", false}},
     {{{3, 3}, {2, 0, 3, 0, 0, 4, 1, 2, 3}, {0, 6, 0, 0, 0, 0, 6, 3, 2}}}},
    {Op::kReduceL2, {{"axes", kLast}, {"keepdims", false}}, {{{2, 2}, {0, 0, 3, 4}, {0, 0, .6, .8}}}},
    {Op::kReduceLogSumExp, {{"axes", kLast}, {"keepdims", false}}, {{{2, 2}, {-kInf, 0, 0, 0}, {0, 1, .5, .5}}}},
    {Op::kScatterElements,
     {{"axis", 0}, {"reduction", "max"}},
     {{{2}, {1, 2}, {1. / 3, 1}}, {{3}, {0, 0, 1}, {}}, {{3}, {1, 1, 0}, {1. / 3, 1. / 3, 0}}}},
};

TEST(Kinks, HavePyTorchsGradients) {
  for (const Kink& kink : kKinks) {
    SCOPED_TRACE(name(kink.op));
    Graph forward("kink");
    std::vector<ValueId> inputs;
    Tensors values;
    for (const Operand& operand : kink.operands) {
      const bool real = !operand.grad.empty();
      const TensorType type{real ? DType::kF64 : DType::kI64, dims(operand.sizes)};
      inputs.push_back(forward.add_input("x", type, InputKind::kInput, real));
      values[inputs.back()] = make_tensor(type.dtype, operand.sizes, operand.values);
    }
    forward.add_output(Builder(forward).op(kink.op, inputs, kink.attrs));
    const Graph training = build_gradient(forward);
    const ValueId dy = training.node(training.yield()).outputs[0];
    std::vector<int64_t> sizes;
    for (const Dim& dim : training.type(dy).shape) sizes.push_back(dim.constant());
    values[dy] = make_tensor(DType::kF64, sizes,
                             std::vector<double>(static_cast<size_t>(numel(training.type(dy).shape).constant()), 1));
    evaluate(training, values);
    for (const GraphOutput& output : training.outputs()) {
      const size_t index = static_cast<size_t>(training.value(output.target).output_index);
      const std::vector<double> found = values_of(values.at(output.value)), &expected = kink.operands[index].grad;
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_DOUBLE_EQ(found[i], expected[i]) << "element " << i << " of operand " << index << " in\n"
                                                << print(training);
    }
  }
}

}  // namespace
}  // namespace lowtide
