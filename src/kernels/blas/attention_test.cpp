// Against the reference kernel, where queries are of several blocks and operands lie as models leave them.
#include <cmath>

#include "kernels/blas/plain_gemm.h"
#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

enum class Added { kNone, kMask, kMaskPerHead, kMaskAndBias, kVisible };

struct BlasAttentionCase {
  int64_t batch, query_heads, key_heads, queries, keys, head_dim, value_dim;
  bool causal = false;
  Added added = Added::kNone;
  double dropout = 0;
};

std::vector<double> random_doubles(int64_t n, uint32_t seed) {
  const std::vector<float> values = random_floats(n, seed);
  return {values.begin(), values.end()};
}

// As [B, S, H, D] with a gap after each row.
struct BlasHeads {
  int64_t batch, heads, rows, dim;
  std::vector<double> data;
  BlasHeads(int64_t b, int64_t h, int64_t r, int64_t d, uint32_t seed)
      : batch(b), heads(h), rows(r), dim(d), data(random_doubles(b * r * (h * d + 5), seed)) {}
  TensorRef ref(const std::vector<double>& from) const {
    const int64_t row = heads * dim + 5;
    return tensor(from.data(), DType::kF64, {batch, heads, rows, dim}, {rows * row, dim, row, 1});
  }
  TensorRef ref() const { return ref(data); }
};

struct BlasProblem {
  BlasAttentionCase c;
  BlasHeads q, k, v, dy;
  std::vector<double> mask, bias;
  std::vector<uint8_t> visible;

  explicit BlasProblem(const BlasAttentionCase& of)
      : c(of),
        q(c.batch, c.query_heads, c.queries, c.head_dim, 1),
        k(c.batch, c.key_heads, c.keys, c.head_dim, 2),
        v(c.batch, c.key_heads, c.keys, c.value_dim, 3),
        dy(c.batch, c.query_heads, c.queries, c.value_dim, 4),
        mask(random_doubles(c.query_heads * c.queries * c.keys, 5)),
        bias(random_doubles(c.query_heads * c.keys, 6)),
        visible(c.batch * c.queries * c.keys) {
    for (size_t i = 0; i < mask.size(); i += 3) mask[i] = -INFINITY;
    for (size_t i = 0; i < visible.size(); ++i) visible[i] = (i * 7919 >> 3) % 3 != 0;
    std::fill_n(visible.begin(), c.keys, 0);  // query 0 sees nothing
  }

  std::vector<int64_t> mask_sizes() const {
    return {1, c.added == Added::kMaskPerHead ? c.query_heads : 1, c.queries, c.keys};
  }
  // mask? and bias? behind the other operands
  std::vector<TensorRef> with_mask(std::vector<TensorRef> operands) const {
    if (c.added == Added::kVisible) {
      operands.push_back(tensor(visible.data(), DType::kBool, {c.batch, 1, c.queries, c.keys}));
    } else if (c.added != Added::kNone) {
      operands.push_back(tensor(mask.data(), DType::kF64, mask_sizes()));
    }
    if (c.added == Added::kMaskAndBias)
      operands.push_back(tensor(bias.data(), DType::kF64, {c.query_heads, 1, c.keys}));
    return operands;
  }

  // y, the log-sum-exp and the gradients: all that the kernels write, gaps of rows included.
  std::vector<double> run(const std::string& provider) const {
    const BoundAttrs attrs{{"scale", 0.3}, {"is_causal", c.causal}, {"dropout", c.dropout}, {"stream", int64_t{7}}};
    const auto zeros = [](size_t n) { return std::vector<double>(n); };
    std::vector<double> y = zeros(dy.data.size()), lse = zeros(c.batch * c.query_heads * c.queries),
                        dq = zeros(q.data.size()), dk = zeros(k.data.size()), dv = zeros(v.data.size()), dmask;
    const TensorRef sums = tensor(lse.data(), DType::kF64, {c.batch, c.query_heads, c.queries});
    run_kernel(provider + ".Attention", with_mask({q.ref(), k.ref(), v.ref()}), {dy.ref(y), sums}, attrs, 99);
    TensorRef mask_gradient;
    if (c.added != Added::kNone && c.added != Added::kVisible) {
      dmask = zeros(c.query_heads * c.queries * c.keys);
      mask_gradient = tensor(dmask.data(), DType::kF64, mask_sizes());
    }
    run_kernel(provider + ".AttentionGrad", with_mask({dy.ref(), q.ref(), k.ref(), v.ref(), dy.ref(y), sums}),
               {q.ref(dq), k.ref(dk), v.ref(dv), mask_gradient}, attrs, 99);
    for (const auto* each : {&lse, &dq, &dk, &dv, &dmask}) y.insert(y.end(), each->begin(), each->end());
    return y;
  }
};

class BlasAttention : public testing::TestWithParam<BlasAttentionCase> {
 protected:
  void SetUp() override { set_plain_gemm(); }
  void TearDown() override { set_libraries({}); }
};

TEST_P(BlasAttention, ForwardAndGradientAreTheReferences) {
  const BlasProblem p(GetParam());
  const std::vector<double> expected = p.run("reference");
  for_every_run([&] { return p.run("blas"); },
                [&](const std::vector<double>& found) {
                  ASSERT_EQ(found.size(), expected.size());
                  for (size_t i = 0; i < found.size(); ++i) {
                    if (found[i] == expected[i]) continue;
                    ASSERT_LE(std::abs(found[i] - expected[i]), 1e-12 * (1 + std::abs(expected[i]))) << "element " << i;
                  }
                });
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, BlasAttention,
    testing::Values(BlasAttentionCase{1, 1, 1, 1, 1, 1, 1}, BlasAttentionCase{2, 3, 3, 17, 17, 16, 16},
                    BlasAttentionCase{1, 2, 2, 65, 65, 8, 8, true}, BlasAttentionCase{1, 4, 2, 50, 33, 20, 12},
                    BlasAttentionCase{1, 4, 1, 33, 90, 7, 11, true}, BlasAttentionCase{1, 2, 1, 90, 33, 4, 4, true},
                    BlasAttentionCase{1, 2, 2, 40, 70, 8, 8, false, Added::kMask},
                    BlasAttentionCase{2, 4, 2, 49, 49, 8, 8, true, Added::kMaskPerHead, 0.2},
                    BlasAttentionCase{2, 2, 2, 40, 70, 8, 8, false, Added::kMaskAndBias, 0.1},
                    BlasAttentionCase{2, 2, 1, 40, 70, 8, 8, false, Added::kVisible, 0.25}));

// A dim of the keys that repeats one row has no leading stride.
TEST(BlasAttentionOfRepeatedRows, IsTheReferences) {
  set_plain_gemm();
  const BlasProblem p({1, 2, 2, 5, 40, 8, 8});
  TensorRef repeated = p.k.ref();
  repeated.strides[2] = 0;
  const BoundAttrs attrs{{"scale", 0.3}, {"is_causal", false}, {"dropout", 0.0}, {"stream", int64_t{7}}};
  std::vector<double> found[2];
  for (const std::string provider : {"reference", "blas"}) {
    std::vector<double>& y = found[provider == "blas"];
    y.resize(p.dy.data.size());
    plain_products = 0;
    run_kernel(provider + ".Attention", {p.q.ref(), repeated, p.v.ref()}, {p.dy.ref(y), TensorRef{}}, attrs);
    EXPECT_EQ(plain_products, 0);
  }
  set_libraries({});
  EXPECT_EQ(found[0], found[1]);
  EXPECT_NE(found[0][0], 0);
}

TEST(BlasAttentionOfFloats, IsRefused) {
  set_plain_gemm();
  const OperandInfo heads{DType::kF32, 4, true};
  const OperandInfo all[] = {heads, heads, heads};
  const BoundAttrs attrs;
  EXPECT_STREQ(find_kernel("blas.Attention")->supports({Op::kAttention, all, {&heads, 1}, &attrs}), "not f64");
  set_libraries({});
}

}  // namespace
}  // namespace lowtide::cpu
