// Proven ranges hold: random graphs of integers are evaluated, and no element leaves the range that the graph proves
// for its value. LOWTIDE_FUZZ_SEED and LOWTIDE_FUZZ_RUNS (default 1 and 300) choose another or longer search.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>

#include "../gradcheck/evaluate.h"
#include "ir/print.h"
#include "ops/builder.h"
#include "ops/value_range.h"

namespace lowtide::fuzz {
namespace {

// Values of shape [4, 6] in one dtype, from inputs with extreme elements and from what has a range by itself.
class IntegerGraphs {
 public:
  explicit IntegerGraphs(uint64_t seed) : random_(seed), b_(graph_) {}

  void build() {
    dtype_ = one_of({DType::kI64, DType::kI64, DType::kI32, DType::kI16, DType::kI8, DType::kU8});
    values_.push_back(graph_.add_input("x", {dtype_, kShape}, InputKind::kInput));
    flags_ = graph_.add_input("b", {DType::kBool, kShape}, InputKind::kInput);
    for (int i = 0; i < 3; ++i) values_.push_back(leaf());
    for (int i = 0; i < 16; ++i) values_.push_back(step());
    graph_.add_output(values_.back());
  }

  Tensors inputs() {
    Tensors tensors;
    for (const GraphInput& input : graph_.inputs()) {
      Tensor tensor{graph_.type(input.value).dtype, {4, 6}, {}};
      const size_t size = static_cast<size_t>(size_bytes(tensor.dtype));
      for (int i = 0; i < 24; ++i) {
        uint64_t bits = chance(0.5) ? random_() : static_cast<uint64_t>(pick(-3, 3));
        if (chance(0.1)) bits = uint64_t{1} << (8 * size - 1);  // the lowest integer
        if (tensor.dtype == DType::kBool) bits &= 1;
        const auto* bytes = reinterpret_cast<const std::byte*>(&bits);
        tensor.bytes.insert(tensor.bytes.end(), bytes, bytes + size);
      }
      tensors[input.value] = std::move(tensor);
    }
    return tensors;
  }

  const Graph& graph() const { return graph_; }

 private:
  int64_t pick(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }
  bool chance(double probability) { return static_cast<double>(random_() >> 11) * 0x1p-53 < probability; }
  template <class T>
  T one_of(std::initializer_list<T> items) {
    return items.begin()[random_() % items.size()];
  }
  ValueId any() { return values_[random_() % values_.size()]; }
  ValueId constant(int64_t low, int64_t high) { return b_.scalar_dim(pick(low, high), dtype_); }

  ValueId leaf() {
    switch (pick(0, 3)) {
      case 0: return b_.cast(flags_, dtype_);
      case 1: return b_.expand(constant(-5, 100), kShape);
      case 2: {
        const ValueId row = b_.op(
            Op::kRange, {}, {{"dtype", dtype_}, {"numel", 6}, {"int_start", pick(-9, 9)}, {"int_step", pick(-3, 3)}});
        return b_.expand(row, kShape);
      }
      default: {
        const ValueId index = b_.op(Op::kArgMax, {any()}, {{"axis", 1}, {"keepdims", true}});
        return b_.expand(b_.cast(index, dtype_), kShape);
      }
    }
  }

  ValueId step() {
    const int64_t axis = pick(0, 1);
    switch (pick(0, 18)) {
      case 0: return leaf();
      case 1:
      case 2: return b_.op(one_of({Op::kAdd, Op::kSub, Op::kMul}), {any(), any()});
      case 3:
      case 4: return b_.op(one_of({Op::kMax, Op::kMin}), {any(), any()});
      case 5: return b_.op(one_of({Op::kBitwiseAnd, Op::kBitwiseOr, Op::kBitwiseXor}), {any(), any()});
      case 6: return b_.op(one_of({Op::kNeg, Op::kAbs, Op::kSign, Op::kRelu, Op::kBitwiseNot}), {any()});
      case 7: return b_.op(one_of({Op::kDiv, Op::kFloorDiv}), {any(), constant(1, 7)});
      case 8: return b_.op(Op::kMod, {any(), constant(1, 9)}, {{"fmod", chance(0.5)}});
      case 9: return b_.op(Op::kMod, {any(), b_.expand(constant(1, 9), kShape)}, {{"fmod", chance(0.5)}});
      case 10: return b_.op(Op::kWhere, {flags_, any(), any()});
      case 11: {
        const double low = static_cast<double>(pick(-20, 20)) / 2;
        return b_.op(Op::kClip, {any()}, {{"min", low}, {"max", low + static_cast<double>(pick(-3, 40))}});
      }
      case 12: return b_.op(Op::kCumSum, {any()}, {{"axis", axis}, {"reverse", chance(0.5)}});
      case 13: {
        const Op op = one_of({Op::kReduceSum, Op::kReduceMax, Op::kReduceMin});
        return b_.expand(b_.reduce(op, any(), {axis}, true), kShape);
      }
      case 14: {
        const NodeId sorted = b_.node(Op::kSort, {any()}, {{"axis", axis}, {"descending", chance(0.5)}});
        return b_.cast(graph_.node(sorted).outputs[static_cast<size_t>(pick(0, 1))], dtype_);
      }
      case 15: return b_.cast(b_.cast(any(), one_of({DType::kI8, DType::kU8, DType::kI32, DType::kBool})), dtype_);
      case 16: return b_.op(Op::kTrilu, {any()}, {{"upper", chance(0.5)}, {"k", 0}});
      case 17: {
        const ValueId part = b_.slice(any(), 1, 1, 5);
        return b_.op(Op::kPad, {part}, {{"pads", dims({0, 1, 0, 1})}, {"mode", "constant"}, {"value", -2.0}});
      }
      default: return b_.slice(b_.op(Op::kConcat, {any(), any()}, {{"axis", axis}}), axis, 2, axis == 0 ? 6 : 8);
    }
  }

  const Shape kShape = {4, 6};
  std::mt19937_64 random_;
  Graph graph_{"g"};
  Builder b_;
  DType dtype_ = DType::kI64;
  ValueId flags_;
  std::vector<ValueId> values_;
};

int64_t element(const Tensor& tensor, size_t index) {
  const std::byte* at = tensor.bytes.data() + index * static_cast<size_t>(size_bytes(tensor.dtype));
  const auto read = [&](auto value) {
    std::memcpy(&value, at, sizeof(value));
    return static_cast<int64_t>(value);
  };
  switch (tensor.dtype) {
    case DType::kI8: return read(int8_t{});
    case DType::kI16: return read(int16_t{});
    case DType::kI32: return read(int32_t{});
    case DType::kI64: return read(int64_t{});
    default: return read(uint8_t{});
  }
}

int64_t setting(const char* name, int64_t fallback) {
  const char* text = std::getenv(name);
  return text ? std::atoll(text) : fallback;
}

TEST(ValueRanges, HoldEveryElement) {
  const int64_t seed = setting("LOWTIDE_FUZZ_SEED", 1), runs = setting("LOWTIDE_FUZZ_RUNS", 300);
  int64_t proven = 0;
  for (int64_t run = 0; run < runs; ++run) {
    IntegerGraphs graphs(static_cast<uint64_t>(seed * 1000003 + run));
    graphs.build();
    Tensors tensors = graphs.inputs();
    evaluate(graphs.graph(), tensors);
    ValueRanges ranges(graphs.graph());
    for (const auto& [id, tensor] : tensors) {
      const DimRange range = ranges.range(id);
      proven += range == full_range(tensor.dtype) ? 0 : 1;
      const size_t count = tensor.bytes.size() / static_cast<size_t>(size_bytes(tensor.dtype));
      for (size_t i = 0; i < count; ++i) {
        const int64_t value = element(tensor, i);
        ASSERT_TRUE(range.low <= value && value <= range.high)
            << "seed " << seed << " run " << run << ": %" << graphs.graph().value(id).name << " holds " << value
            << ", its range is [" << range.low << ", " << range.high << "]\n"
            << print(graphs.graph());
      }
    }
  }
  EXPECT_GT(proven, runs * 5) << "hardly any range is proven";
}

}  // namespace
}  // namespace lowtide::fuzz
