#include "session/calibration_graphs.h"

#include <cstdint>
#include <map>
#include <string_view>

#include "base/check.h"

namespace lowtide {

namespace {

// $name in a text stands for a size or a word: t for the dtype of values, u for that of statistics of rows.
using Sizes = std::map<std::string, int64_t, std::less<>>;
using Words = std::map<std::string, std::string_view, std::less<>>;

// A layer as BERT and GPT-2 have them, between embeddings and the loss of a tied head: dropout, biases, GELU.
constexpr std::string_view kLanguage = R"(
graph @language(%ids: i64[$b, $s] input, %labels: i64[$n] input, %table: $t[$v, $d] param,
    %g1: $t[$d] param, %h1: $t[$d] param, %g2: $t[$d] param, %h2: $t[$d] param, %g3: $t[$d] param,
    %h3: $t[$d] param, %wq: $t[$d, $d] param, %bq: $t[$d] param, %wk: $t[$d, $d] param, %bk: $t[$d] param,
    %wv: $t[$d, $d] param, %bv: $t[$d] param, %wo: $t[$d, $d] param, %bo: $t[$d] param,
    %w1: $t[$f, $d] param, %b1: $t[$f] param, %w2: $t[$d, $f] param, %b2: $t[$d] param) {
  %e: $t[$b, $s, $d] = Gather(axis=0) %table, %ids
  %x: $t[$b, $s, $d] = Dropout(ratio=0.1, stream=0) %e
  %y1: $t[$b, $s, $d], %m1: $u[$b, $s], %i1: $u[$b, $s] = LayerNormalization(axis=2, epsilon=1e-05) %x, %g1, %h1
  %r1: $t[$n, $d] = Reshape(shape=[$n, $d]) %y1
  %q0: $t[$n, $d] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %r1, %wq, %bq
  %q1: $t[$b, $s, $h, $e] = Reshape(shape=[$b, $s, $h, $e]) %q0
  %q: $t[$b, $h, $s, $e] = Transpose(perm=[0, 2, 1, 3]) %q1
  %k0: $t[$n, $d] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %r1, %wk, %bk
  %k1: $t[$b, $s, $h, $e] = Reshape(shape=[$b, $s, $h, $e]) %k0
  %k: $t[$b, $h, $s, $e] = Transpose(perm=[0, 2, 1, 3]) %k1
  %v0: $t[$n, $d] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %r1, %wv, %bv
  %v1: $t[$b, $s, $h, $e] = Reshape(shape=[$b, $s, $h, $e]) %v0
  %v: $t[$b, $h, $s, $e] = Transpose(perm=[0, 2, 1, 3]) %v1
  %a0: $t[$b, $h, $s, $e], %l0: $u[$b, $h, $s] = Attention(dropout=0.1, is_causal=false, scale=0.125, stream=1) %q, %k, %v
  %a1: $t[$b, $s, $h, $e] = Transpose(perm=[0, 2, 1, 3]) %a0
  %a2: $t[$n, $d] = Reshape(shape=[$n, $d]) %a1
  %o0: $t[$n, $d] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %a2, %wo
  %o1: $t[$b, $s, $d] = Reshape(shape=[$b, $s, $d]) %o0
  %x1: $t[$b, $s, $d] = BiasDropout(ratio=0.1, stream=2) %o1, %bo, %x
  %y2: $t[$b, $s, $d], %m2: $u[$b, $s], %i2: $u[$b, $s] = LayerNormalization(axis=2, epsilon=1e-05) %x1, %g2, %h2
  %r2: $t[$n, $d] = Reshape(shape=[$n, $d]) %y2
  %u0: $t[$n, $f] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %r2, %w1
  %u1: $t[$n, $f] = $gelu %u0, %b1
  %u2: $t[$n, $d] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %u1, %w2
  %u3: $t[$b, $s, $d] = Reshape(shape=[$b, $s, $d]) %u2
  %x2: $t[$b, $s, $d] = BiasDropout(ratio=0.1, stream=3) %u3, %b2, %x1
  %y3: $t[$b, $s, $d], %m3: $u[$b, $s], %i3: $u[$b, $s] = LayerNormalization(axis=2, epsilon=1e-05) %x2, %g3, %h3
  %r3: $t[$n, $d] = Reshape(shape=[$n, $d]) %y3
  %logits: $t[$n, $v] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %r3, %table
  %loss: $u[], %lse: $u[$n] = SoftmaxCrossEntropyLoss(ignore_index=-100, label_smoothing=0.0, reduction="mean") %logits, %labels
  return %loss output
})";

// A layer as Llama has them: RMS norms, rotary embeddings, causal attention with fewer keys than queries, a gated MLP.
constexpr std::string_view kGated = R"(
graph @gated(%x: $t[$b, $s, $d] input, %cos: $t[1, 1, $s, $e] input, %sin: $t[1, 1, $s, $e] input,
    %g0: $t[$d] param, %g1: $t[$d] param, %g2: $t[$d] param, %wq: $t[$d, $d] param, %wk: $t[$p, $d] param,
    %wv: $t[$p, $d] param, %wo: $t[$d, $d] param, %w1: $t[$f, $d] param, %w3: $t[$f, $d] param,
    %w2: $t[$d, $f] param) {
  %y0: $t[$b, $s, $d], %i0: $u[$b, $s] = SimplifiedLayerNormalization(axis=2, epsilon=1e-06) %x, %g0
  %y1: $t[$b, $s, $d], %i1: $u[$b, $s] = SimplifiedLayerNormalization(axis=2, epsilon=1e-06) %y0, %g1
  %r1: $t[$n, $d] = Reshape(shape=[$n, $d]) %y1
  %q0: $t[$n, $d] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %r1, %wq
  %q1: $t[$b, $s, $h, $e] = Reshape(shape=[$b, $s, $h, $e]) %q0
  %q2: $t[$b, $h, $s, $e] = Transpose(perm=[0, 2, 1, 3]) %q1
  %q: $t[$b, $h, $s, $e] = RotaryEmbedding %q2, %cos, %sin
  %k0: $t[$n, $p] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %r1, %wk
  %k1: $t[$b, $s, $j, $e] = Reshape(shape=[$b, $s, $j, $e]) %k0
  %k2: $t[$b, $j, $s, $e] = Transpose(perm=[0, 2, 1, 3]) %k1
  %k: $t[$b, $j, $s, $e] = RotaryEmbedding %k2, %cos, %sin
  %v0: $t[$n, $p] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %r1, %wv
  %v1: $t[$b, $s, $j, $e] = Reshape(shape=[$b, $s, $j, $e]) %v0
  %v: $t[$b, $j, $s, $e] = Transpose(perm=[0, 2, 1, 3]) %v1
  %a0: $t[$b, $h, $s, $e], %l0: $u[$b, $h, $s] = Attention(dropout=0.0, is_causal=true, scale=0.125, stream=0) %q, %k, %v
  %a1: $t[$b, $s, $h, $e] = Transpose(perm=[0, 2, 1, 3]) %a0
  %a2: $t[$n, $d] = Reshape(shape=[$n, $d]) %a1
  %o0: $t[$n, $d] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %a2, %wo
  %o1: $t[$b, $s, $d] = Reshape(shape=[$b, $s, $d]) %o0
  %x1: $t[$b, $s, $d] = Add %y0, %o1
  %y2: $t[$b, $s, $d], %i2: $u[$b, $s] = SimplifiedLayerNormalization(axis=2, epsilon=1e-06) %x1, %g2
  %r2: $t[$n, $d] = Reshape(shape=[$n, $d]) %y2
  %u0: $t[$n, $f] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %r2, %w1
  %u1: $t[$n, $f] = Swish %u0
  %u2: $t[$n, $f] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %r2, %w3
  %u3: $t[$n, $f] = Mul %u1, %u2
  %u4: $t[$n, $d] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %u3, %w2
  %u5: $t[$b, $s, $d] = Reshape(shape=[$b, $s, $d]) %u4
  %x2: $t[$b, $s, $d] = Add %x1, %u5
  %loss: $t[] = ReduceMean(axes=[0, 1, 2], keepdims=false) %x2
  return %loss output
})";

// Convolutions as ResNet has them: a stem, a bottleneck block with a strided shortcut, a classifier. Those without
// strides are most of a ResNet's, and faster.
constexpr std::string_view kImages = R"(
graph @images(%x: f32[$b, 3, $p, $p] input, %labels: i64[$b] input, %w0: f32[$c, 3, 7, 7] param, %g0: f32[$c] param,
    %h0: f32[$c] param, %s0: f32[$c] buffer, %t0: f32[$c] buffer, %w1: f32[$c, $c, 1, 1] param, %g1: f32[$c] param,
    %h1: f32[$c] param, %s1: f32[$c] buffer, %t1: f32[$c] buffer, %w2: f32[$c, $c, 3, 3] param, %g2: f32[$c] param,
    %h2: f32[$c] param, %s2: f32[$c] buffer, %t2: f32[$c] buffer, %w5: f32[$c, $c, 3, 3] param, %g5: f32[$c] param,
    %h5: f32[$c] param, %sa: f32[$c] buffer, %ta: f32[$c] buffer, %w3: f32[$d, $c, 1, 1] param, %g3: f32[$d] param,
    %h3: f32[$d] param, %s3: f32[$d] buffer, %t3: f32[$d] buffer, %w4: f32[$d, $c, 1, 1] param, %g4: f32[$d] param,
    %h4: f32[$d] param, %s4: f32[$d] buffer, %t4: f32[$d] buffer, %head: f32[1000, $d] param, %bias: f32[1000] param) {
  %c0: f32[$b, $c, $q, $q] = Conv(dilations=[1, 1], group=1, kernel_shape=[7, 7], pads=[3, 3, 3, 3], strides=[2, 2]) %x, %w0
  %n0: f32[$b, $c, $q, $q], %m0: f32[$c], %i0: f32[$c], %s5: f32[$c], %t5: f32[$c] = BatchNormalization(epsilon=1e-05, momentum=0.1) %c0, %g0, %h0, %s0, %t0
  %a0: f32[$b, $c, $q, $q] = Relu %n0
  %p0: f32[$b, $c, $r, $r], %j0: i64[$b, $c, $r, $r] = MaxPool(ceil_mode=false, dilations=[1, 1], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]) %a0
  %c1: f32[$b, $c, $r, $r] = Conv(dilations=[1, 1], group=1, kernel_shape=[1, 1], pads=[0, 0, 0, 0], strides=[1, 1]) %p0, %w1
  %n1: f32[$b, $c, $r, $r], %m1: f32[$c], %i1: f32[$c], %s6: f32[$c], %t6: f32[$c] = BatchNormalization(epsilon=1e-05, momentum=0.1) %c1, %g1, %h1, %s1, %t1
  %a1: f32[$b, $c, $r, $r] = Relu %n1
  %c2: f32[$b, $c, $o, $o] = Conv(dilations=[1, 1], group=1, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]) %a1, %w2
  %n2: f32[$b, $c, $o, $o], %m2: f32[$c], %i2: f32[$c], %s7: f32[$c], %t7: f32[$c] = BatchNormalization(epsilon=1e-05, momentum=0.1) %c2, %g2, %h2, %s2, %t2
  %a2: f32[$b, $c, $o, $o] = Relu %n2
  %c5: f32[$b, $c, $o, $o] = Conv(dilations=[1, 1], group=1, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1]) %a2, %w5
  %n5: f32[$b, $c, $o, $o], %m5: f32[$c], %i5: f32[$c], %sb: f32[$c], %tb: f32[$c] = BatchNormalization(epsilon=1e-05, momentum=0.1) %c5, %g5, %h5, %sa, %ta
  %a5: f32[$b, $c, $o, $o] = Relu %n5
  %c3: f32[$b, $d, $o, $o] = Conv(dilations=[1, 1], group=1, kernel_shape=[1, 1], pads=[0, 0, 0, 0], strides=[1, 1]) %a5, %w3
  %n3: f32[$b, $d, $o, $o], %m3: f32[$d], %i3: f32[$d], %s8: f32[$d], %t8: f32[$d] = BatchNormalization(epsilon=1e-05, momentum=0.1) %c3, %g3, %h3, %s3, %t3
  %c4: f32[$b, $d, $o, $o] = Conv(dilations=[1, 1], group=1, kernel_shape=[1, 1], pads=[0, 0, 0, 0], strides=[2, 2]) %p0, %w4
  %n4: f32[$b, $d, $o, $o], %m4: f32[$d], %i4: f32[$d], %s9: f32[$d], %t9: f32[$d] = BatchNormalization(epsilon=1e-05, momentum=0.1) %c4, %g4, %h4, %s4, %t4
  %sum: f32[$b, $d, $o, $o] = Add %n3, %n4
  %a3: f32[$b, $d, $o, $o] = Relu %sum
  %mean: f32[$b, $d] = ReduceMean(axes=[2, 3], keepdims=false) %a3
  %logits: f32[$b, 1000] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %mean, %head, %bias
  %loss: f32[], %lse: f32[$b] = SoftmaxCrossEntropyLoss(ignore_index=-100, label_smoothing=0.0, reduction="mean") %logits, %labels
  return %loss output, %s5 update %s0, %t5 update %t0, %s6 update %s1, %t6 update %t1, %s7 update %s2, %t7 update %t2, %s8 update %s3, %t8 update %t3, %s9 update %s4, %t9 update %t4, %sb update %sa, %tb update %ta
})";

// What the others lack: rows of softmax, copies, comparisons, what is drawn, what one element after another computes.
constexpr std::string_view kPieces = R"(
graph @pieces(%x: f32[$n, $d] input, %w: f32[$d] param, %u: f32[$n, $d] input, %ids: i64[$n, $d] input) {
  %a: f32[$n, $d] = Mul %x, %w
  %s: f32[$n, $d] = Softmax(axis=1) %a
  %t: f32[$n, $d] = Tanh %s
  %m: bool[$n, $d] = Less %x, %u
  %z: f32[$n, $d] = Where %m, %t, %a
  %c: f32[$n, $c] = Concat(axis=1) %z, %t
  %c2: f32[$n, 2, $d] = Reshape(shape=[$n, 2, $d]) %c
  %p: f32[$n, 3, $d] = Pad(mode="constant", pads=[0, 1, 0, 0, 0, 0], value=0.0) %c2
  %v: f32[$d, 3, $n] = Transpose(perm=[2, 1, 0]) %p
  %v2: f32[$d, 3, $n] = Copy %v
  %q: f32[$d, 3, $n] = CumSum(axis=1) %v2
  %e: f32[$d, 3, $n] = Exp %q
  %i: i64[$n, $d] = Add %ids, %ids
  %f: f32[$n, $d] = Cast(to=f32) %i
  %k: bool[$n, $d] = LessOrEqual %i, %ids
  %o: bool[$n, $d] = And %k, %m
  %j: bool[$n, $d] = Not %o
  %y: f32[$n, $d] = Where %j, %f, %a
  %r: f32[$n, $d] = RandomUniform(dtype=f32, high=1.0, low=0.0, shape=[$n, $d], stream=0)
  %g: f32[$n, $d] = Mul %r, %y
  %l1: f32[] = ReduceSum(axes=[0, 1, 2], keepdims=false) %e
  %l2: f32[] = ReduceSum(axes=[0, 1], keepdims=false) %g
  %loss: f32[] = Add %l1, %l2
  return %loss output
})";

std::string with_sizes(std::string_view text, const Sizes& sizes, const Words& words = {}) {
  std::string result;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '$') {
      result += text[at];
      continue;
    }
    size_t end = at + 1;
    while (end < text.size() && text[end] >= 'a' && text[end] <= 'z') ++end;
    const std::string_view name = text.substr(at + 1, end - at - 1);
    if (const auto word = words.find(name); word != words.end()) {
      result += word->second;
    } else {
      const auto size = sizes.find(name);
      LT_CHECK(size != sizes.end(), "a calibration graph without the size ", name);
      result += std::to_string(size->second);
    }
    at = end - 1;
  }
  return result;
}

std::string_view statistics_of(std::string_view dtype) { return dtype == "f64" ? "f64" : "f32"; }

// Batch, positions, width, MLP, and entries of the vocabulary.
std::string language(int64_t b, int64_t s, int64_t d, int64_t f, int64_t v, std::string_view gelu,
                     std::string_view dtype = "f32") {
  return with_sizes(kLanguage,
                    {{"b", b}, {"s", s}, {"n", b * s}, {"d", d}, {"h", d / 64}, {"e", 64}, {"f", f}, {"v", v}},
                    {{"gelu", gelu}, {"t", dtype}, {"u", statistics_of(dtype)}});
}

std::string gated(int64_t b, int64_t s, int64_t d, int64_t f, std::string_view dtype = "f32") {
  const int64_t keys = std::max<int64_t>(64, d / 2);
  return with_sizes(
      kGated,
      {{"b", b}, {"s", s}, {"n", b * s}, {"d", d}, {"h", d / 64}, {"e", 64}, {"f", f}, {"p", keys}, {"j", keys / 64}},
      {{"t", dtype}, {"u", statistics_of(dtype)}});
}

// Batch, pixels a side (of which a power of two divides sixteen), channels, and those of the block's end.
std::string images(int64_t b, int64_t pixels, int64_t c, int64_t d) {
  return with_sizes(
      kImages, {{"b", b}, {"p", pixels}, {"q", pixels / 2}, {"r", pixels / 4}, {"o", pixels / 8}, {"c", c}, {"d", d}});
}

std::string pieces(int64_t n, int64_t d) { return with_sizes(kPieces, {{"n", n}, {"d", d}, {"c", 2 * d}}); }

}  // namespace

std::vector<std::string> calibration_graphs() {
  std::vector<std::string> graphs = {language(1, 8, 64, 256, 1000, "BiasGelu"),
                                     language(4, 64, 256, 1024, 4096, "FastGelu"),
                                     language(8, 128, 512, 2048, 16000, "BiasGelu"),
                                     language(2, 512, 768, 3072, 32000, "FastGelu"),
                                     language(8, 197, 384, 1536, 1000, "BiasGelu"),
                                     gated(1, 8, 64, 256),
                                     gated(4, 64, 256, 704),
                                     gated(8, 128, 512, 2048),
                                     gated(2, 512, 512, 1376),
                                     gated(2, 1024, 768, 2048),
                                     images(1, 32, 8, 16),
                                     images(4, 64, 32, 64),
                                     images(8, 224, 64, 256),
                                     images(8, 112, 128, 512),
                                     images(8, 56, 256, 1024),
                                     images(8, 56, 512, 2048),
                                     pieces(2, 16),
                                     pieces(64, 256),
                                     pieces(1024, 1024)};
  // Rows of their own, from smaller models: some of these dtypes' kernels are slow.
  for (std::string_view dtype : {"f64", "bf16", "f16"}) {
    graphs.push_back(language(1, 8, 64, 256, 1000, "FastGelu", dtype));
    graphs.push_back(language(4, 64, 256, 1024, 4096, "BiasGelu", dtype));
    graphs.push_back(gated(1, 8, 64, 256, dtype));
    graphs.push_back(gated(4, 128, 384, 1024, dtype));
  }
  return graphs;
}

}  // namespace lowtide
