#include <cmath>
#include <limits>

#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"
#include "kernels/philox.h"

namespace lowtide::cpu {
namespace {

constexpr double kAttentionInf = std::numeric_limits<double>::infinity();

enum class MaskKind { kNone, kAdded, kAddedPerHead, kFarAway, kVisible, kVisibleKeys };

struct AttentionCase {
  int64_t batch, query_heads, key_heads, queries, keys, head_dim, value_dim;
  bool causal = false;
  MaskKind mask = MaskKind::kNone;
  double dropout = 0;
};

// Operands as [B, S, H, D] with a gap after each row.
struct Operand {
  int64_t batch, heads, rows, dim;
  std::vector<float> data;
  Operand(int64_t b, int64_t h, int64_t r, int64_t d, uint32_t seed)
      : batch(b), heads(h), rows(r), dim(d), data(random_floats(b * r * (h * d + 5), seed)) {}
  int64_t row_stride() const { return heads * dim + 5; }
  TensorRef view(const float* p) const {
    return floats(p, {batch, heads, rows, dim}, {rows * row_stride(), dim, row_stride(), 1});
  }
  double at(int64_t b, int64_t h, int64_t r, int64_t d) const { return data[at_index(b, h, r, d)]; }
  int64_t at_index(int64_t b, int64_t h, int64_t r, int64_t d) const {
    return (b * rows + r) * row_stride() + h * dim + d;
  }
};

// How a mask is walked: strides of batch, head, query and key.
struct Mask {
  const float* added = nullptr;
  const uint8_t* visible = nullptr;
  int64_t batch_stride = 0, head_stride = 0, query_stride = 0, key_stride = 0;
};

constexpr uint64_t kKey = 99, kStream = 7;

struct Problem {
  AttentionCase c;
  Mask mask;
  float scale;
  Operand q, k, v, grad;
  std::vector<float> added;
  std::vector<uint8_t> visible;

  explicit Problem(const AttentionCase& each)
      : c(each),
        q(c.batch, c.query_heads, c.queries, c.head_dim, 1),
        k(c.batch, c.key_heads, c.keys, c.head_dim, 2),
        v(c.batch, c.key_heads, c.keys, c.value_dim, 3),
        grad(c.batch, c.query_heads, c.queries, c.value_dim, 4) {
    scale = 1 / std::sqrt(static_cast<float>(c.head_dim));
    if (c.mask == MaskKind::kFarAway) {
      // Rows whose every key is hidden by a number in whose digits scores are lost, and ordinary ones.
      constexpr float kFar[] = {std::numeric_limits<float>::lowest(), -1e9f, -1e30f};
      added = random_floats(c.queries * c.keys, 5);
      for (int64_t i = 0; i < c.queries; ++i) {
        for (int64_t j = 0; j < c.keys; ++j)
          if (i % 4 < 3 || j % 3 == 0) added[i * c.keys + j] = kFar[i % 4 % 3];
      }
      mask.added = added.data();
      mask.query_stride = c.keys;
      mask.key_stride = 1;
    }
    if (c.mask == MaskKind::kAdded || c.mask == MaskKind::kAddedPerHead) {
      added = random_floats(c.query_heads * c.queries * c.keys, 5);
      for (size_t i = 0; i < added.size(); i += 3) added[i] = -INFINITY;
      mask.added = added.data();
      mask.head_stride = c.mask == MaskKind::kAddedPerHead ? c.queries * c.keys : 0;
      mask.query_stride = c.keys;
      mask.key_stride = 1;
    }
    if (c.mask == MaskKind::kVisible || c.mask == MaskKind::kVisibleKeys) {
      visible.resize(c.batch * c.queries * c.keys);
      for (size_t i = 0; i < visible.size(); ++i) visible[i] = (i * 7919 >> 3) % 3 != 0;
      // Query 0 sees nothing in the full mask, batch entry 0 nothing but its first two keys in the key mask.
      if (c.mask == MaskKind::kVisible) {
        std::fill_n(visible.begin(), c.keys, 0);
        mask.batch_stride = c.queries * c.keys;
        mask.query_stride = c.keys;
        mask.key_stride = 1;
      } else {
        for (int64_t j = 0; j < c.keys; ++j) visible[j * 2] = j < 2;
        mask.batch_stride = 2 * c.keys * (c.batch > 1 && c.queries > 2);
        mask.key_stride = 2;
      }
      mask.visible = visible.data();
    }
  }

  TensorRef mask_operand() const {
    const std::vector<int64_t> sizes = {c.batch, c.query_heads, c.queries, c.keys};
    const std::vector<int64_t> strides = {mask.batch_stride, mask.head_stride, mask.query_stride, mask.key_stride};
    return mask.added != nullptr ? floats(mask.added, sizes, strides)
                                 : tensor(mask.visible, DType::kBool, sizes, strides);
  }

  // The gradient of an added mask, whose numbers it is summed into where the mask repeats.
  int64_t mask_heads() const { return mask.head_stride == 0 ? 1 : c.query_heads; }
  int64_t mask_numel() const { return mask.added == nullptr ? 0 : mask_heads() * c.queries * c.keys; }
  TensorRef mask_gradient(const void* data, DType dtype) const {
    return mask.added == nullptr ? TensorRef{} : tensor(data, dtype, {1, mask_heads(), c.queries, c.keys});
  }

  double score(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (c.causal && j > i) return -kAttentionInf;
    double s = 0;
    for (int64_t d = 0; d < c.head_dim; ++d) {
      s += q.at(b, h, i, d) * k.at(b, h / (c.query_heads / c.key_heads), j, d);
    }
    s *= scale;
    const int64_t at = b * mask.batch_stride + h * mask.head_stride + i * mask.query_stride + j * mask.key_stride;
    if (mask.added != nullptr) s += mask.added[at];
    if (c.mask == MaskKind::kFarAway) s = static_cast<float>(s);
    if (mask.visible != nullptr && !mask.visible[at]) s = -kAttentionInf;
    return s;
  }
  double factor(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (c.dropout == 0) return 1;
    const uint64_t element = ((b * c.query_heads + h) * c.queries + i) * c.keys + j;
    return dropout_keep(kKey, kStream, element, dropout_threshold(c.dropout)) ? 1 / (1 - c.dropout) : 0;
  }
};

// The outputs in doubles, laid out as the operands.
struct Oracle {
  std::vector<double> o, lse, dq, dk, dv, dmask;
  explicit Oracle(const Problem& p)
      : o(p.grad.data.size()),
        lse(p.c.batch * p.c.query_heads * p.c.queries),
        dq(p.q.data.size()),
        dk(p.k.data.size()),
        dv(p.v.data.size()),
        dmask(p.mask_numel()) {
    const AttentionCase& c = p.c;
    std::vector<double> s(c.keys), g(c.keys);
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t h = 0; h < c.query_heads; ++h) {
        const int64_t kh = h / (c.query_heads / c.key_heads);
        for (int64_t i = 0; i < c.queries; ++i) {
          double top = -kAttentionInf, total = 0, delta = 0;
          for (int64_t j = 0; j < c.keys; ++j) top = std::max(top, s[j] = p.score(b, h, i, j));
          for (int64_t j = 0; j < c.keys; ++j) total += s[j] == -kAttentionInf ? 0 : std::exp(s[j] - top);
          lse[(b * c.query_heads + h) * c.queries + i] = total == 0 ? -kAttentionInf : top + std::log(total);
          for (int64_t j = 0; j < c.keys; ++j) {
            s[j] = s[j] == -kAttentionInf ? 0 : std::exp(s[j] - top) / total;
            const double factor = p.factor(b, h, i, j);
            g[j] = 0;
            for (int64_t d = 0; d < c.value_dim; ++d) {
              o[p.grad.at_index(b, h, i, d)] += s[j] * factor * p.v.at(b, kh, j, d);
              g[j] += factor * p.grad.at(b, h, i, d) * p.v.at(b, kh, j, d);
              dv[p.v.at_index(b, kh, j, d)] += s[j] * factor * p.grad.at(b, h, i, d);
            }
            delta += s[j] * g[j];
          }
          for (int64_t j = 0; j < c.keys; ++j) {
            const double ds = s[j] * (g[j] - delta) * p.scale;
            if (!dmask.empty()) dmask[(h % p.mask_heads() * c.queries + i) * c.keys + j] += ds / p.scale;
            for (int64_t d = 0; d < c.head_dim; ++d) {
              dq[p.q.at_index(b, h, i, d)] += ds * p.k.at(b, kh, j, d);
              dk[p.k.at_index(b, kh, j, d)] += ds * p.q.at(b, h, i, d);
            }
          }
        }
      }
    }
  }
};

class Attention : public testing::TestWithParam<AttentionCase> {};

void expect_doubles(const AttentionCase& each) {
  const Problem p(each);
  const Oracle oracle(p);
  const auto sized = [](const auto& like) { return std::vector<float>(like.size()); };
  for_every_run(
      [&] {
        auto o = sized(oracle.o), lse = sized(oracle.lse), dq = sized(oracle.dq), dk = sized(oracle.dk),
             dv = sized(oracle.dv), dmask = sized(oracle.dmask);
        const BoundAttrs attrs{{"scale", double{p.scale}},
                               {"is_causal", p.c.causal},
                               {"dropout", p.c.dropout},
                               {"stream", static_cast<int64_t>(kStream)}};
        const TensorRef q = p.q.view(p.q.data.data()), k = p.k.view(p.k.data.data()), v = p.v.view(p.v.data.data());
        const TensorRef y = p.grad.view(o.data()), sums = floats(lse.data(), {p.c.batch, p.c.query_heads, p.c.queries});
        run_kernel("cpu.Attention", {q, k, v, p.mask_operand()}, {y, sums}, attrs, kKey);
        run_kernel(
            "cpu.AttentionGrad", {p.grad.view(p.grad.data.data()), q, k, v, y, sums, p.mask_operand()},
            {p.q.view(dq.data()), p.k.view(dk.data()), p.v.view(dv.data()), p.mask_gradient(dmask.data(), DType::kF32)},
            attrs, kKey);
        for (const auto* each : {&lse, &dq, &dk, &dv, &dmask}) o.insert(o.end(), each->begin(), each->end());
        return o;
      },
      [&](const std::vector<float>& out) {
        const float* at = out.data();
        for (const auto* each : {&oracle.o, &oracle.lse, &oracle.dq, &oracle.dk, &oracle.dv, &oracle.dmask}) {
          expect_close(at, each->size(), [&](int64_t i) { return (*each)[i]; }, 1e-5, 2e-5);
          at += each->size();
        }
      });
}

TEST_P(Attention, ForwardAndGradientAgreeWithDoubles) { expect_doubles(GetParam()); }

TEST(AttentionMask, RowsThatAreHiddenByFiniteNumbers) {
  for (const AttentionCase& each : {AttentionCase{2, 2, 1, 30, 40, 16, 16, false, MaskKind::kFarAway},
                                    AttentionCase{1, 2, 2, 70, 601, 16, 16, false, MaskKind::kFarAway, 0.5},
                                    AttentionCase{1, 2, 2, 300, 300, 20, 16, true, MaskKind::kFarAway}}) {
    SCOPED_TRACE(testing::Message() << each.queries << " queries, " << each.keys << " keys");
    expect_doubles(each);
  }
}

// Operands that bf16 or f16 hold exactly; weights and gradients of scores may be rounded to bf16 for their products.
template <class Half>
void expect_half_attention_agrees(const AttentionCase& c, DType dtype, double relative) {
  Problem p(c);
  for (auto* data : {&p.q.data, &p.k.data, &p.v.data, &p.grad.data, &p.added})
    for (float& value : *data) value = Half(value);
  const Oracle oracle(p);
  const auto stored = [](const std::vector<float>& values) { return std::vector<Half>(values.begin(), values.end()); };
  const std::vector<Half> q_data = stored(p.q.data), k_data = stored(p.k.data), v_data = stored(p.v.data),
                          grad_data = stored(p.grad.data), added = stored(p.added);
  const auto view = [&](const Operand& like, const Half* data) {
    TensorRef ref = like.view(reinterpret_cast<const float*>(data));
    ref.dtype = dtype;
    return ref;
  };
  TensorRef mask = p.mask_operand();
  if (p.mask.added != nullptr) {
    mask.dtype = dtype;
    mask.data = const_cast<Half*>(added.data());
  }
  const BoundAttrs attrs{{"scale", double{p.scale}},
                         {"is_causal", c.causal},
                         {"dropout", c.dropout},
                         {"stream", static_cast<int64_t>(kStream)}};
  for_every_run(
      [&] {
        std::vector<Half> o(oracle.o.size()), dq(oracle.dq.size()), dk(oracle.dk.size()), dv(oracle.dv.size()),
            dmask(oracle.dmask.size());
        std::vector<float> lse(oracle.lse.size());
        const TensorRef q = view(p.q, q_data.data()), k = view(p.k, k_data.data()), v = view(p.v, v_data.data());
        const TensorRef y = view(p.grad, o.data()), sums = floats(lse.data(), {c.batch, c.query_heads, c.queries});
        run_kernel("cpu.Attention.half", {q, k, v, mask}, {y, sums}, attrs, kKey);
        run_kernel(
            "cpu.AttentionGrad.half", {view(p.grad, grad_data.data()), q, k, v, y, sums, mask},
            {view(p.q, dq.data()), view(p.k, dk.data()), view(p.v, dv.data()), p.mask_gradient(dmask.data(), dtype)},
            attrs, kKey);
        std::vector<float> out(o.begin(), o.end());
        out.insert(out.end(), lse.begin(), lse.end());
        for (const auto* each : {&dq, &dk, &dv, &dmask}) out.insert(out.end(), each->begin(), each->end());
        return out;
      },
      [&](const std::vector<float>& out) {
        const float* at = out.data();
        for (const auto* each : {&oracle.o, &oracle.lse, &oracle.dq, &oracle.dk, &oracle.dv, &oracle.dmask}) {
          // Of what is summed, some numbers are far larger than the sum.
          double largest = 0;
          for (double value : *each) largest = std::isfinite(value) ? std::max(largest, std::abs(value)) : largest;
          expect_close(at, each->size(), [&](int64_t i) { return (*each)[i]; }, relative, relative * (largest + 1));
          at += each->size();
        }
      });
}

TEST_P(Attention, OfHalvesAgreesWithDoubles) {
  expect_half_attention_agrees<BFloat16>(GetParam(), DType::kBF16, 0x1p-7);
  expect_half_attention_agrees<Float16>(GetParam(), DType::kF16, 0x1p-10);
}

// The bits of y, the log-sum-exp and the gradients under a mask and a bias, and under their sum as a mask.
template <class Number>
void expect_bias_is_added(DType dtype, const char* forward, const char* backward, std::vector<int64_t> bias_sizes) {
  constexpr int64_t kBatch = 2, kHeads = 2, kQueries = 67, kKeys = 290, kDim = 16;
  const auto numbers = [](int64_t n, uint32_t seed) {
    const std::vector<float> values = random_floats(n, seed);
    return std::vector<Number>(values.begin(), values.end());
  };
  const auto heads_of = [&](const std::vector<Number>& data, int64_t rows) {
    return tensor(data.data(), dtype, {kBatch, kHeads, rows, kDim});
  };
  const std::vector<Number> q = numbers(kBatch * kHeads * kQueries * kDim, 1),
                            k = numbers(kBatch * kHeads * kKeys * kDim, 2),
                            v = numbers(kBatch * kHeads * kKeys * kDim, 3), dy = numbers(q.size(), 4),
                            mask = numbers(kBatch * kQueries * kKeys, 5);
  int64_t bias_numel = 1;
  for (int64_t size : bias_sizes) bias_numel *= size;
  const std::vector<Number> bias = numbers(bias_numel, 6);
  const auto stride = [&](size_t dim) {
    int64_t result = bias_sizes[dim] == 1 ? 0 : 1;
    for (size_t i = dim + 1; i < 4; ++i) result *= bias_sizes[i];
    return result;
  };
  std::vector<Number> sum;
  for (int64_t b = 0; b < kBatch; ++b)
    for (int64_t h = 0; h < kHeads; ++h)
      for (int64_t i = 0; i < kQueries; ++i)
        for (int64_t j = 0; j < kKeys; ++j)
          sum.push_back(
              Number(static_cast<float>(mask[(b * kQueries + i) * kKeys + j]) +
                     static_cast<float>(bias[b * stride(0) + h * stride(1) + i * stride(2) + j * stride(3)])));
  const BoundAttrs attrs{
      {"scale", 0.25}, {"is_causal", false}, {"dropout", 0.1}, {"stream", static_cast<int64_t>(kStream)}};
  const auto results = [&](const std::vector<TensorRef>& added) {
    std::vector<Number> y(q.size()), dq(q.size()), dk(k.size()), dv(v.size());
    std::vector<float> lse(kBatch * kHeads * kQueries);
    const TensorRef sums = floats(lse.data(), {kBatch, kHeads, kQueries});
    std::vector<TensorRef> operands = {heads_of(q, kQueries), heads_of(k, kKeys), heads_of(v, kKeys)};
    operands.insert(operands.end(), added.begin(), added.end());
    run_kernel(forward, operands, {heads_of(y, kQueries), sums}, attrs, kKey);
    operands.insert(operands.begin(), heads_of(dy, kQueries));
    operands.insert(operands.begin() + 4, {heads_of(y, kQueries), sums});
    run_kernel(backward, operands, {heads_of(dq, kQueries), heads_of(dk, kKeys), heads_of(dv, kKeys), TensorRef{}},
               attrs, kKey);
    std::vector<float> all(lse);
    for (const auto* each : {&y, &dq, &dk, &dv}) all.insert(all.end(), each->begin(), each->end());
    return all;
  };
  const TensorRef masked = tensor(mask.data(), dtype, {kBatch, 1, kQueries, kKeys});
  EXPECT_EQ(results({masked, tensor(bias.data(), dtype, bias_sizes)}),
            results({tensor(sum.data(), dtype, {kBatch, kHeads, kQueries, kKeys})}));
}

TEST(AttentionBias, IsAddedToTheMask) {
  for (const std::vector<int64_t>& sizes :
       {std::vector<int64_t>{1, 2, 1, 290}, std::vector<int64_t>{1, 2, 67, 1}, std::vector<int64_t>{1, 1, 67, 290}}) {
    expect_bias_is_added<float>(DType::kF32, "cpu.Attention", "cpu.AttentionGrad", sizes);
    expect_bias_is_added<BFloat16>(DType::kBF16, "cpu.Attention.half", "cpu.AttentionGrad.half", sizes);
    expect_bias_is_added<Float16>(DType::kF16, "cpu.Attention.half", "cpu.AttentionGrad.half", sizes);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Attention,
    testing::Values(AttentionCase{1, 1, 1, 1, 1, 1, 1}, AttentionCase{2, 3, 3, 17, 17, 16, 16},
                    AttentionCase{1, 2, 2, 65, 65, 64, 64, true}, AttentionCase{1, 4, 2, 50, 33, 20, 12},
                    AttentionCase{1, 4, 1, 57, 300, 7, 33, true}, AttentionCase{1, 2, 1, 300, 57, 40, 40, true},
                    AttentionCase{1, 1, 1, 513, 513, 32, 32, true},
                    AttentionCase{1, 2, 2, 20, 600, 16, 16, false, MaskKind::kAdded},
                    AttentionCase{2, 2, 1, 49, 270, 24, 24, false, MaskKind::kAddedPerHead},
                    AttentionCase{3, 4, 2, 49, 49, 32, 32, true, MaskKind::kAddedPerHead, 0.2},
                    AttentionCase{2, 2, 2, 30, 280, 16, 16, false, MaskKind::kVisible},
                    AttentionCase{2, 2, 2, 30, 40, 16, 16, true, MaskKind::kVisible, 0.25},
                    AttentionCase{2, 1, 1, 30, 70, 16, 16, false, MaskKind::kVisibleKeys},
                    AttentionCase{2, 4, 2, 61, 61, 16, 16, true, MaskKind::kNone, 0.1},
                    AttentionCase{1, 2, 2, 70, 601, 16, 16, false, MaskKind::kAdded, 0.5},
                    AttentionCase{1, 1, 1, 1025, 3, 8, 8}, AttentionCase{1, 1, 1, 5, 7, 256, 256}));

}  // namespace
}  // namespace lowtide::cpu
