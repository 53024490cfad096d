// The gradients of attention where they belong in one tensor, and where they lie over what they are of: the bits of
// three tensors of their own.
#include "base/half.h"
#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

struct PackedCase {
  int64_t batch, heads, rows, dim;
  bool causal = false;
  double dropout = 0;
  float hidden_by = 0;  // of every third key, where it is not 0
};

constexpr PackedCase kPackedCases[] = {
    {2, 3, 5, 4},          {1, 2, 65, 16, true},      {2, 2, 300, 16, false, 0.2},
    {1, 2, 601, 24, true}, {2, 2, 270, 8, true, 0.1}, {1, 2, 530, 16, false, 0, -1e30f},
};

// Packed along `axis`; 0: three tensors of heads whose rows lie one behind another.
int64_t part_offset(const PackedCase& c, int64_t axis, int64_t part) {
  const int64_t each = c.batch * c.heads * c.rows * c.dim;
  return part * (axis == 0 ? each : axis == 2 ? c.heads * c.dim : c.dim);
}
std::vector<int64_t> part_strides(const PackedCase& c, int64_t axis) {
  const int64_t row = c.heads * c.dim * (axis == 0 ? 1 : 3), head = axis == 3 ? 3 * c.dim : c.dim;
  return {c.rows * row, head, row, 1};
}
std::vector<int64_t> packed_sizes(const PackedCase& c, int64_t axis) {
  if (axis == 2) return {c.batch, c.rows, 3, c.heads, c.dim};
  return {c.batch, c.rows, c.heads, 3, c.dim};
}

template <class Number>
class PackedRun {
 public:
  PackedRun(const PackedCase& each, DType dtype, std::string provider, std::string suffix)
      : c_(each),
        dtype_(dtype),
        forward_(provider + ".Attention" + suffix),
        backward_(provider + ".AttentionGrad" + suffix) {
    for (uint32_t i = 0; i < 3; ++i) parts_[i] = random_numbers(10 + i);
    dy_ = random_numbers(13);
    mask_.assign(static_cast<size_t>(c_.rows), Number(0.0f));
    for (size_t i = 0; i < mask_.size(); i += 3) mask_[i] = Number(c_.hidden_by);
  }

  // dq, dk, dv, in that order, [B, H, S, D] each. `packs`: the output is one; `onto`: it lies over q, k and v.
  std::vector<Number> gradients(int64_t axis, bool packs, bool onto) const {
    const size_t each = parts_[0].size();
    std::vector<Number> qkv(3 * each), out(3 * each), y(each);
    const std::vector<int64_t> heads = {c_.batch, c_.heads, c_.rows, c_.dim};
    const auto part = [&](std::vector<Number>& of, int64_t i) {
      return tensor(of.data() + part_offset(c_, axis, i), dtype_, heads, part_strides(c_, axis));
    };
    for (int64_t i = 0; i < 3; ++i) place(parts_[i], part(qkv, i));
    std::vector<double> sums(static_cast<size_t>(c_.batch * c_.heads * c_.rows));
    const TensorRef lse = tensor(sums.data(), dtype_ == DType::kF64 ? DType::kF64 : DType::kF32,
                                 {c_.batch, c_.heads, c_.rows}),
                    of_y = tensor(y.data(), dtype_, heads), dy = tensor(dy_.data(), dtype_, heads);
    const TensorRef mask = c_.hidden_by == 0 ? TensorRef{} : tensor(mask_.data(), dtype_, heads_mask(), {0, 0, 0, 1});
    BoundAttrs attrs{{"scale", 0.25}, {"is_causal", c_.causal}, {"dropout", c_.dropout}, {"stream", int64_t{7}}};
    run_kernel(forward_, {part(qkv, 0), part(qkv, 1), part(qkv, 2), mask}, {of_y, lse}, attrs, 99);
    std::vector<Number>& to = onto ? qkv : out;
    std::vector<TensorRef> outputs = {part(to, 0), part(to, 1), part(to, 2), TensorRef{}};
    if (packs) {
      attrs.set("packed", axis);
      outputs = {tensor(to.data(), dtype_, packed_sizes(c_, axis)), TensorRef{}, TensorRef{}, TensorRef{}};
    }
    std::vector<TensorRef> of = {part(qkv, 0), part(qkv, 1), part(qkv, 2)};
    for (TensorRef& each : of)
      if (c_.batch == 1) each.strides[0] = 3;  // of the only batch entry: any number will do
    run_kernel(backward_, {dy, of[0], of[1], of[2], of_y, lse, mask}, outputs, attrs, 99);
    std::vector<Number> result;
    for (int64_t i = 0; i < 3; ++i) take(part(to, i), result);
    return result;
  }

 private:
  std::vector<int64_t> heads_mask() const { return {c_.batch, c_.heads, c_.rows, c_.rows}; }

  std::vector<Number> random_numbers(uint32_t seed) const {
    const std::vector<float> values = random_floats(c_.batch * c_.heads * c_.rows * c_.dim, seed);
    return {values.begin(), values.end()};
  }
  template <class Body>
  static void for_each(const TensorRef& heads, Body body) {
    for (int64_t b = 0; b < heads.sizes[0]; ++b)
      for (int64_t h = 0; h < heads.sizes[1]; ++h)
        for (int64_t i = 0; i < heads.sizes[2]; ++i)
          for (int64_t e = 0; e < heads.sizes[3]; ++e)
            body(heads.as<Number>()[b * heads.strides[0] + h * heads.strides[1] + i * heads.strides[2] + e]);
  }
  static void place(const std::vector<Number>& values, const TensorRef& to) {
    auto at = values.begin();
    for_each(to, [&](Number& here) { here = *at++; });
  }
  static void take(const TensorRef& from, std::vector<Number>& to) {
    for_each(from, [&](const Number& here) { to.push_back(here); });
  }

  PackedCase c_;
  DType dtype_;
  std::string forward_, backward_;
  std::vector<Number> parts_[3], dy_, mask_;
};

template <class Number>
void expect_same_bits(DType dtype, const std::string& provider, const std::string& suffix, bool in_place) {
  for (const PackedCase& each : kPackedCases) {
    SCOPED_TRACE(testing::Message() << provider << " " << name(dtype) << ", " << each.rows << " rows");
    const PackedRun<Number> run(each, dtype, provider, suffix);
    const auto same = [&](const std::vector<Number>& found, const std::vector<Number>& wanted) {
      return std::memcmp(found.data(), wanted.data(), wanted.size() * sizeof(Number)) == 0;
    };
    const std::vector<Number> wanted = run.gradients(0, false, false);
    if (in_place) {
      EXPECT_TRUE(same(run.gradients(0, false, true), wanted)) << "onto q, k and v";
    }
    for (const int64_t axis : {2, 3}) {
      EXPECT_TRUE(same(run.gradients(axis, false, false), wanted)) << "of packed operands, axis " << axis;
      EXPECT_TRUE(same(run.gradients(axis, true, false), wanted)) << "packed, axis " << axis;
      if (in_place) {
        EXPECT_TRUE(same(run.gradients(axis, true, true), wanted)) << "packed onto qkv, axis " << axis;
      }
    }
  }
}

TEST(PackedAttention, HasTheBitsOfThreeTensors) {
  for (Isa each : runnable_isas()) {
    limit_isa(each);
    expect_same_bits<float>(DType::kF32, "cpu", "", true);
    expect_same_bits<BFloat16>(DType::kBF16, "cpu", ".half", true);
    expect_same_bits<Float16>(DType::kF16, "cpu", ".half", true);
  }
  limit_isa(kHighestIsa);
}

TEST(PackedAttention, OfTheReference) {
  expect_same_bits<float>(DType::kF32, "reference", "", false);
  expect_same_bits<double>(DType::kF64, "reference", "", false);
}

}  // namespace
}  // namespace lowtide::cpu
