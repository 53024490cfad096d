// Passes change no result: random graphs, full of what the passes look for, run with every pass and with none; outputs
// and gradients must agree. LOWTIDE_FUZZ_SEED and LOWTIDE_FUZZ_RUNS (default 1 and 60) choose another or longer search.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <random>

#include "base/check.h"
#include "ir/print.h"
#include "ir/verify.h"
#include "ops/builder.h"
#include "ops/rule.h"
#include "passes/pass.h"
#include "session/session.h"

namespace lowtide::fuzz {
namespace {

constexpr int64_t kBatch = 3, kLength = 4, kWidth = 8;

// Forward graphs in f64 over values of shape [b, s, 8], so that reordered arithmetic stays far below the tolerance.
class ExecutableGraphs {
 public:
  explicit ExecutableGraphs(uint64_t seed) : random_(seed), graph_("g"), b_(graph_) {}

  Graph build() {
    const Dim batch = Dim::symbol("b"), length = Dim::symbol("s");
    full_ = {batch, length, kWidth};
    graph_.ranges()["b"] = {1, 64};
    graph_.ranges()["s"] = {2, 64};
    for (const char* name : {"x", "z"})
      values_.push_back(graph_.add_input(name, {DType::kF64, full_}, InputKind::kInput, true));
    weight_ = graph_.add_input("w", {DType::kF64, {kWidth}}, InputKind::kParam, true);
    square_ = graph_.add_input("m", {DType::kF64, {kWidth, kWidth}}, InputKind::kParam, true);
    for (int i = 0; i < 14; ++i) values_.push_back(step());
    // Sums keep outputs from being inputs or views, whose identity passes must respect and this test does not look at.
    graph_.add_output(b_.op(Op::kTanh, {b_.add(values_.back(), any())}));
    graph_.add_output(b_.op(Op::kReduceMean, {any()}, {{"axes", dims({0, 1, 2})}, {"keepdims", false}}));
    return std::move(graph_);
  }

 private:
  int64_t pick(int64_t count) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(count)); }
  ValueId any() { return values_[static_cast<size_t>(pick(static_cast<int64_t>(values_.size())))]; }
  ValueId number(double value) { return b_.scalar(value, DType::kF64); }
  ValueId slice(ValueId x, int64_t start, int64_t end) { return b_.slice(x, 2, start, end); }

  ValueId step() {
    const ValueId x = any(), y = any();
    switch (pick(22)) {
      case 0: return b_.add(x, number(0));
      case 1: return b_.mul(number(1), x);
      case 2: return b_.op(Op::kPow, {x, number(1)});
      case 3: return b_.neg(b_.neg(x));
      case 4: return b_.mul(b_.op(Op::kTanh, {x}), b_.expand(weight_, full_));
      case 5: return b_.sub(x, b_.op(Op::kSigmoid, {y}));
      case 6: return b_.add(x, b_.expand(b_.unsqueeze(weight_, {0, 1}), full_));
      case 7: return b_.reshape(b_.transpose(b_.reshape(x, {full_[0], full_[1], 2, 4}), {0, 1, 2, 3}), full_);
      case 8: return b_.transpose(b_.transpose(x, {1, 2, 0}), {2, 0, 1});
      case 9: return b_.op(Op::kConcat, {slice(x, 0, 3), slice(slice(y, 1, 8), 2, 7)}, {{"axis", Dim(2)}});
      case 10: return b_.squeeze(b_.unsqueeze(b_.unsqueeze(x, {1}), {0}), {0, 2});
      case 11: return masked(x, y);
      case 12: return gelu(x);
      case 13: return b_.mul(x, b_.op(Op::kSigmoid, {b_.mul(x, pick(2) ? 1.0 : 1.702)}));
      case 14: return rms_norm(x);
      case 15: return rotary(x);
      case 16: return attention(x, y);
      case 17: return b_.mul(b_.op(Op::kMatMul, {x, b_.swap_axes(square_, 0, 1)}), 0.25);
      case 18: return b_.add(x, b_.op(Op::kDetach, {y}));
      case 19: return gelu(biased(x));
      case 20: return dropped(x, y);
      default: return b_.op(Op::kDropout, {x}, {{"ratio", pick(2) ? 0.0 : 0.25}, {"stream", Dim(pick(2))}});
    }
  }

  ValueId positions() {
    return b_.op(Op::kRange, {},
                 {{"dtype", DType::kI64}, {"numel", full_[1]}, {"int_start", Dim(0)}, {"int_step", Dim(1)}});
  }

  // Where with a mask of index arithmetic over the positions: true, false or mixed.
  ValueId masked(ValueId x, ValueId y) {
    const Op compare[] = {Op::kLess, Op::kLessOrEqual, Op::kGreater, Op::kGreaterOrEqual, Op::kEqual, Op::kNotEqual};
    const ValueId bound = b_.scalar_dim(pick(2) ? Dim(pick(4) - 1) : full_[1] - 1 + pick(3), DType::kI64);
    ValueId mask = b_.op(compare[pick(6)], {b_.add(positions(), b_.scalar_dim(0, DType::kI64)), bound});
    if (pick(2)) mask = b_.op(Op::kNot, {mask});
    if (pick(2))
      mask = b_.op(pick(2) ? Op::kAnd : Op::kOr, {mask, b_.full({}, static_cast<double>(pick(2)), DType::kBool)});
    return b_.op(Op::kWhere, {b_.expand(b_.unsqueeze(mask, {1}), full_), x, y});
  }

  ValueId gelu(ValueId x) {
    if (pick(3) == 0) return b_.op(pick(2) ? Op::kGelu : Op::kFastGelu, {x});
    if (pick(2)) {
      const ValueId erf = b_.op(Op::kErf, {b_.mul(x, std::sqrt(0.5))});
      return b_.mul(b_.mul(x, 0.5), b_.add(erf, 1.0));
    }
    const ValueId cube = b_.op(Op::kPow, {x, number(3)});
    const ValueId inner = b_.mul(b_.add(x, b_.mul(cube, 0.044715)), std::sqrt(2 / M_PI));
    return b_.mul(b_.mul(x, 0.5), b_.add(b_.op(Op::kTanh, {inner}), 1.0));
  }

  // A bias behind a product and a view, or added alone.
  ValueId biased(ValueId x) {
    if (pick(2)) return pick(2) ? b_.add(x, weight_) : b_.add(weight_, x);
    const Attrs gemm{{"transA", false}, {"transB", true}, {"alpha", 0.25}, {"beta", pick(4) ? 1.0 : 0.5}};
    const ValueId y = b_.op(Op::kGemm, {b_.reshape(x, {full_[0] * full_[1], kWidth}), square_, weight_}, gemm);
    if (pick(4) == 0) values_.push_back(b_.reshape(b_.neg(y), full_));
    return b_.reshape(y, full_);
  }

  ValueId dropped(ValueId x, ValueId y) {
    const Attrs attrs{{"ratio", 0.25}, {"stream", Dim(pick(2))}};
    const ValueId z = b_.op(Op::kDropout, {biased(x)}, attrs);
    const ValueId residual = pick(4) ? y : z;
    return pick(2) ? b_.add(residual, z) : b_.op(Op::kSoftmax, {b_.add(z, residual)}, {{"axis", Dim(2)}});
  }

  ValueId rms_norm(ValueId x) {
    const ValueId mean = b_.reduce(Op::kReduceMean, b_.op(Op::kPow, {x, number(2)}), {2}, true);
    const ValueId normed = b_.mul(x, b_.op(Op::kRsqrt, {b_.add(mean, 0.01)}));
    return pick(2) ? b_.mul(weight_, normed) : normed;
  }

  ValueId rotary(ValueId x) {
    const ValueId angle = b_.op(Op::kTanh, {weight_});
    const ValueId turned = b_.op(Op::kConcat, {b_.neg(slice(x, 4, 8)), slice(x, 0, 4)}, {{"axis", Dim(2)}});
    return b_.add(b_.mul(x, b_.op(Op::kCos, {angle})), b_.mul(turned, b_.op(Op::kSin, {angle})));
  }

  // Two heads of four; causal or with a bias, written out or not.
  ValueId attention(ValueId x, ValueId y) {
    const auto heads = [&](ValueId value) {
      return b_.transpose(b_.reshape(value, {full_[0], full_[1], 2, 4}), {0, 2, 1, 3});
    };
    const ValueId q = heads(x), k = heads(y), v = heads(y);
    const ValueId row = b_.unsqueeze(positions(), {1});
    const ValueId causal = b_.op(Op::kLessOrEqual, {positions(), row});
    ValueId result;
    if (pick(2)) {
      const ValueId mask = b_.expand(b_.unsqueeze(causal, {0, 1}), {full_[0], 1, full_[1], full_[1]});
      result = b_.op(Op::kAttention, {q, k, v, mask},
                     {{"is_causal", false}, {"scale", 0.5}, {"dropout", 0.0}, {"stream", Dim(0)}});
    } else {
      const ValueId scores = b_.mul(b_.op(Op::kMatMul, {q, b_.swap_axes(k, 2, 3)}), 0.5);
      const ValueId bias = b_.op(Op::kWhere, {causal, number(0), number(-1e30)});
      const ValueId probabilities = b_.op(Op::kSoftmax, {b_.add(scores, bias)}, {{"axis", Dim(3)}});
      result = b_.op(Op::kMatMul, {probabilities, v});
    }
    return b_.reshape(b_.transpose(result, {0, 2, 1, 3}), full_);
  }

  std::mt19937_64 random_;
  Graph graph_;
  Builder b_;
  Shape full_;
  std::vector<ValueId> values_;
  ValueId weight_, square_;
};

TensorRef tensor(std::vector<double>& data, const std::vector<int64_t>& sizes) {
  TensorRef ref;
  ref.data = data.data();
  ref.dtype = DType::kF64;
  ref.rank = static_cast<int32_t>(sizes.size());
  ref.present = true;
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    ref.sizes[i] = sizes[i];
    ref.strides[i] = stride;
    stride *= sizes[i];
  }
  return ref;
}

std::vector<double> numbers(const TensorRef& ref) {
  int64_t count = 1;
  for (int i = 0; i < ref.rank; ++i) count *= ref.sizes[i];
  const double* data = static_cast<const double*>(ref.data);
  return {data, data + count};
}

// Outputs, then gradients, of one step on fixed inputs.
std::vector<std::vector<double>> run(const Graph& graph, const std::vector<std::string>& disabled) {
  SessionOptions options;
  options.disabled_passes = disabled;
  options.guard = true;
  Session session(graph.clone(), options);
  std::mt19937_64 random(7);
  std::normal_distribution<> normal;
  std::vector<std::vector<int64_t>> sizes = {
      {kBatch, kLength, kWidth}, {kBatch, kLength, kWidth}, {kWidth}, {kWidth, kWidth}};
  std::vector<std::vector<double>> data;
  for (const std::vector<int64_t>& shape : sizes) {
    int64_t count = 1;
    for (int64_t size : shape) count *= size;
    std::vector<double>& values = data.emplace_back(static_cast<size_t>(count));
    for (double& value : values) value = normal(random);
  }
  std::vector<TensorRef> inputs;
  for (size_t i = 0; i < sizes.size(); ++i) inputs.push_back(tensor(data[i], sizes[i]));
  std::shared_ptr<RunState> state;
  const std::vector<OwnedTensor> outputs = session.forward(inputs, 99, &state);
  std::vector<std::vector<double>> results;
  for (const OwnedTensor& output : outputs) results.push_back(numbers(output.ref));
  std::vector<std::vector<double>> ones;
  std::vector<TensorRef> gradients;
  ones.reserve(session.grad_outputs().size());
  for (int output : session.grad_outputs()) {
    const TensorRef& ref = outputs[static_cast<size_t>(output)].ref;
    ones.emplace_back(numbers(ref).size(), 1.0);
    gradients.push_back(tensor(ones.back(), {ref.sizes, ref.sizes + ref.rank}));
  }
  std::vector<TensorRef> saved;
  for (int input : session.saved_inputs()) saved.push_back(inputs[static_cast<size_t>(input)]);
  // In the order of the inputs; empty: none.
  const size_t outputs_end = results.size();
  results.resize(outputs_end + inputs.size());
  const std::vector<OwnedTensor> found = session.backward(*state, gradients, saved).tensors();
  for (size_t i = 0; i < found.size(); ++i)
    results[outputs_end + static_cast<size_t>(session.gradient_targets()[i])] = numbers(found[i].ref);
  return results;
}

uint64_t from_environment(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : fallback;
}

TEST(PassFuzz, ResultsAreThoseWithoutPasses) {
  const uint64_t seed = from_environment("LOWTIDE_FUZZ_SEED", 1), runs = from_environment("LOWTIDE_FUZZ_RUNS", 60);
  std::printf("seed %llu, %llu runs\n", static_cast<unsigned long long>(seed), static_cast<unsigned long long>(runs));
  std::vector<std::string> all;
  for (const Pass& pass : all_passes()) all.emplace_back(pass.name);
  for (uint64_t i = 0; i < runs; ++i) {
    const Graph graph = ExecutableGraphs(seed * 1000003 + i).build();
    SCOPED_TRACE(concat("run ", i, "\n", print(graph)));
    verify(graph);
    verify_types(graph);
    const auto expected = run(graph, all), found = run(graph, {});
    ASSERT_EQ(found.size(), expected.size());
    for (size_t k = 0; k < found.size(); ++k) {
      ASSERT_EQ(found[k].size(), expected[k].size());
      for (size_t j = 0; j < found[k].size(); ++j)
        ASSERT_NEAR(found[k][j], expected[k][j], 1e-8 * std::max(1.0, std::abs(expected[k][j]))) << "result " << k;
    }
  }
}

}  // namespace
}  // namespace lowtide::fuzz
