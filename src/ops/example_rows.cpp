#include "ops/example_inputs.h"

namespace lowtide::examples {

static void add_norms(List& list) {
  for (Op op : {Op::kSoftmax, Op::kLogSoftmax}) {
    list.add(op, "", {real({3, 5}, -2, 2)}, {{"axis", 1}});
    list.add(op, "first axis", {real({3, 2, 2}, -2, 2)}, {{"axis", 0}});
  }
  list.add(Op::kBiasSoftmax, "", {real({2, 3, 5}, -2, 2), real({3, 5})}, {{"axis", 2}});
  list.add(Op::kBiasSoftmax, "keys alone", {real({2, 2, 3, 5}, -2, 2), real({2, 1, 1, 5})}, {{"axis", 3}});
  list.add(Op::kBiasSoftmax, "long rows", {real({2, 2, 70}, -2, 2), real({2, 2, 70})}, {{"axis", 2}});
  list.add(Op::kBiasSoftmax, "one number a row", {real({3, 5}, -2, 2), real({3, 1})}, {{"axis", 1}});
  list.add(Op::kBiasSoftmax, "first axis", {real({3, 2, 2}, -2, 2), real({2})}, {{"axis", 0}});
  const auto layer = [](int64_t axis) { return Attrs{{"axis", axis}, {"epsilon", 1e-5}}; };
  list.add(Op::kLayerNormalization, "", {real({2, 3, 4}), real({4}), real({4})}, layer(2));
  list.add(Op::kLayerNormalization, "two dims", {real({2, 3, 4}), real({3, 4}), real({3, 4})}, layer(1));
  list.add(Op::kLayerNormalization, "plain", {real({3, 4})}, layer(1));
  list.add(Op::kLayerNormalization, "weight only", {real({3, 4}), real({4})}, layer(1));
  list.add(Op::kLayerNormalization, "bias only", {real({3, 4}), absent(), real({4})}, layer(1));
  list.add(Op::kSimplifiedLayerNormalization, "", {real({2, 3, 4}), real({4})}, layer(2));
  list.add(Op::kSimplifiedLayerNormalization, "plain", {real({3, 4})}, layer(1));
  const auto group = [](int64_t groups) { return Attrs{{"num_groups", groups}, {"epsilon", 1e-5}}; };
  list.add(Op::kGroupNormalization, "", {real({2, 4, 3}), real({4}), real({4})}, group(2));
  list.add(Op::kGroupNormalization, "plain", {real({2, 4, 2, 2})}, group(4));
  list.add(Op::kGroupNormalization, "one group", {real({2, 4}), real({4}), real({4})}, group(1));
  const Attrs batch{{"epsilon", 1e-5}, {"momentum", 0.1}};
  const ExampleInput mean = fixed({3}), variance = fixed({3}, 0.5, 2);
  list.add(Op::kBatchNormalization, "", {real({2, 3, 2, 2}), real({3}), real({3}), mean, variance}, batch);
  list.add(Op::kBatchNormalization, "no running statistics", {real({4, 3}), real({3}), real({3})}, batch);
  list.add(Op::kBatchNormalization, "no affine", {real({4, 3, 2}), absent(), absent(), mean, variance}, batch);
}

static void add_losses(List& list) {
  const auto loss = [](const char* reduction, int64_t ignored, double smoothing) {
    return Attrs{{"reduction", reduction}, {"ignore_index", ignored}, {"label_smoothing", smoothing}};
  };
  const ExampleInput logits = real({6, 4}, -2, 2), labels = integers({6}, 0, 3);
  list.add(Op::kSoftmaxCrossEntropyLoss, "mean", {logits, labels}, loss("mean", -100, 0));
  list.add(Op::kSoftmaxCrossEntropyLoss, "sum", {logits, labels}, loss("sum", -100, 0));
  list.add(Op::kSoftmaxCrossEntropyLoss, "none", {logits, labels}, loss("none", -100, 0));
  list.add(Op::kSoftmaxCrossEntropyLoss, "ignored", {logits, labels}, loss("mean", 1, 0));
  list.add(Op::kSoftmaxCrossEntropyLoss, "weighted", {logits, labels, fixed({4}, 0.5, 2)}, loss("mean", 2, 0));
  list.add(Op::kSoftmaxCrossEntropyLoss, "smoothed", {logits, labels}, loss("mean", -100, 0.1));
  list.add(Op::kSoftmaxCrossEntropyLoss, "smoothed, weighted", {logits, labels, fixed({4}, 0.5, 2)},
           loss("none", 1, 0.2));
  list.add(Op::kSoftmaxCrossEntropyLoss, "pixels", {real({2, 3, 2, 2}), integers({2, 2, 2}, 0, 2)}, loss("mean", 0, 0));
  list.add(Op::kSoftmaxCrossEntropyLoss, "pixels, weighted",
           {real({2, 3, 2, 2}), integers({2, 2, 2}, 0, 2), fixed({3}, 0.5, 2)}, loss("mean", 0, 0.1));
  list.add(Op::kSoftmaxCrossEntropyLoss, "one row", {real({4}), integers({}, 0, 3)}, loss("mean", -100, 0));
}

// Ten steps are enough for every path, three are not for some.
static void add_ctc_losses(List& list) {
  const auto ctc = [](int64_t blank, bool zero_infinity, bool normalised) {
    return Attrs{{"blank", blank}, {"zero_infinity", zero_infinity}, {"normalised", normalised}};
  };
  const ExampleInput padded = integers({3, 4}, 1, 3), read = integers({3}, 9, 10), lengths = integers({3}, 0, 4);
  const ExampleInput row = integers({9}, 0, 2), threes = integers({3}, 3, 3);
  list.add(Op::kCtcLoss, "", {real({10, 3, 5}, -3, -1), padded, read, lengths}, ctc(0, false, false));
  list.add(Op::kCtcLoss, "in a row", {real({10, 3, 4}, -3, -1), row, read, threes}, ctc(3, false, false));
  list.add(Op::kCtcLoss, "no path", {real({3, 3, 5}, -3, -1), padded, integers({3}, 0, 3), integers({3}, 2, 4)},
           ctc(0, true, false));
  const ExampleInput dloss = fixed({3}), log_probs = fixed({10, 3, 5}, -3, -1);
  list.add(Op::kCtcLossGrad, "normalised", {dloss, log_probs, padded, read, lengths}, ctc(4, false, true));
  list.add(Op::kCtcLossGrad, "normalised, no path",
           {dloss, fixed({3, 3, 5}, -3, -1), padded, integers({3}, 0, 3), lengths}, ctc(0, true, true));
}

static void add_recurrences(List& list) {
  const auto layer = [](const char* cell, bool reverse) { return Attrs{{"cell", cell}, {"reverse", reverse}}; };
  const Op op = Op::kRecurrence, grad = Op::kRecurrenceGrad;
  const ExampleInput state = real({3, 5}), lengths = integers({3}, 1, 4);
  const auto gates = [](int64_t count) { return real({4, 3, count * 5}); };
  const auto weight = [](int64_t count) { return real({count * 5, 5}); };
  list.add(op, "lstm", {gates(4), weight(4), state, state}, layer("lstm", false));
  list.add(op, "lstm from the end", {gates(4), weight(4), state, state, absent(), lengths}, layer("lstm", true));
  list.add(op, "lstm, lengths", {gates(4), weight(4), state, state, absent(), lengths}, layer("lstm", false));
  list.add(op, "gru", {gates(3), weight(3), state, absent(), real({15})}, layer("gru", false));
  list.add(op, "gru from the end", {gates(3), weight(3), state, absent(), real({15}), lengths}, layer("gru", true));
  list.add(op, "gru without bias", {gates(3), weight(3), state, absent(), absent(), lengths}, layer("gru", false));
  list.add(op, "tanh", {gates(1), weight(1), state}, layer("tanh", true));
  list.add(op, "relu", {gates(1), weight(1), state, absent(), absent(), lengths}, layer("relu", false));
  const ExampleInput rows = fixed({3, 5}), steps = fixed({4, 3, 5});
  const auto kept = [](int64_t count) { return fixed({4, 3, count * 5}, 0.1, 0.9); };
  const auto fixed_weight = [](int64_t count) { return fixed({count * 5, 5}); };
  const ExampleInput none = absent();
  list.add(grad, "lstm", {steps, fixed_weight(4), rows, rows, steps, kept(4), steps, rows, rows}, layer("lstm", false));
  list.add(grad, "lstm from the end", {steps, fixed_weight(4), rows, rows, steps, kept(4), steps, none, none, lengths},
           layer("lstm", true));
  list.add(grad, "lstm, its last memory",
           {steps, fixed_weight(4), rows, rows, steps, kept(4), none, none, rows, lengths}, layer("lstm", false));
  list.add(grad, "gru", {steps, fixed_weight(3), rows, none, none, kept(4), steps, rows}, layer("gru", false));
  list.add(grad, "gru from the end", {steps, fixed_weight(3), rows, none, none, kept(4), steps, none, none, lengths},
           layer("gru", true));
  list.add(grad, "tanh", {steps, fixed_weight(1), rows, none, none, none, steps, rows, none, lengths},
           layer("tanh", false));
  list.add(grad, "relu", {steps, fixed_weight(1), rows, none, none, none, none, rows}, layer("relu", true));
}

static void add_linear_losses(List& list) {
  const auto loss = [](const char* reduction, int64_t ignored, double smoothing) {
    return Attrs{{"reduction", reduction}, {"ignore_index", ignored}, {"label_smoothing", smoothing}};
  };
  const ExampleInput x = real({6, 3}), weight = real({5, 3}), labels = integers({6}, 0, 4), bias = real({5});
  list.add(Op::kLinearCrossEntropyLoss, "mean", {x, weight, labels, bias}, loss("mean", -100, 0));
  list.add(Op::kLinearCrossEntropyLoss, "sum", {x, weight, labels, bias}, loss("sum", -100, 0));
  list.add(Op::kLinearCrossEntropyLoss, "no bias", {x, weight, labels}, loss("mean", -100, 0));
  list.add(Op::kLinearCrossEntropyLoss, "ignored", {x, weight, labels, bias}, loss("mean", 1, 0));
  list.add(Op::kLinearCrossEntropyLoss, "smoothed", {x, weight, labels, bias}, loss("sum", 2, 0.1));
  list.add(Op::kLinearCrossEntropyLoss, "several blocks", {real({300, 3}), weight, integers({300}, 0, 4), bias},
           loss("mean", 0, 0.1));
  const ExampleInput dloss = statistic({}), logits = fixed({6, 5}, -2, 2), lse = statistic({6}, 2, 3);
  const ExampleInput sent = fixed({6, 5});
  const ExampleInput rows = fixed({6, 3}), table = fixed({5, 3});
  const Op grad = Op::kLinearCrossEntropyLossGrad;
  list.add(grad, "", {dloss, logits, labels, lse, table, rows}, loss("mean", 1, 0.1));
  list.add(grad, "logits that have another gradient", {dloss, logits, labels, lse, table, rows, sent},
           loss("sum", -100, 0));
  list.add(grad, "no x", {dloss, logits, labels, lse, table, absent(), sent}, loss("mean", -100, 0));
}

// Panels that fill the gradient's memory, so that no number of it is left as it was; and a last one that is narrower.
static void add_panel_losses(List& list) {
  const ExampleInput weight = fixed({2048, 2}), labels = integers({4}, 0, 2047), bias = fixed({2048});
  const auto loss = [](int64_t ignored, double smoothing) {
    return Attrs{{"reduction", "mean"}, {"ignore_index", ignored}, {"label_smoothing", smoothing}};
  };
  const auto keeping = [&](Attrs attrs, DType computes, DType keeps) {
    attrs.set("computes", computes);
    attrs.set("keeps", keeps);
    return attrs;
  };
  const ExampleInput lse = statistic({4}, 8, 9);
  for (const DType half : {DType::kBF16, DType::kF16}) {
    const auto add = [&](Op op, const char* note, std::vector<ExampleInput> inputs, Attrs attrs) {
      list.add(op, concat(note, name(half)), std::move(inputs), std::move(attrs));
    };
    add(Op::kPanelLinearCrossEntropyLoss, "", {fixed({4, 2}), weight, labels, bias},
        keeping(loss(-100, 0.1), half, half));
    add(Op::kPanelLinearCrossEntropyLoss, "f32 gradient, ", {fixed({4, 2}), statistic({2048, 2}), labels},
        keeping(loss(7, 0), half, DType::kF32));
    Attrs attrs = loss(7, 0.1);
    attrs.set("computes", half);
    add(Op::kPanelLinearCrossEntropyLossGrad, "",
        {statistic({}), fixed({1030, 3}), integers({4}, 0, 1029), lse, fixed({1030, 3}), fixed({4, 3}),
         fixed({1030, 4})},
        attrs);
    add(Op::kPanelLinearCrossEntropyLossGrad, "f32 gradient, ",
        {statistic({}), statistic({6, 2}), integers({4}, 0, 5), lse, statistic({6, 2}), fixed({4, 2}), fixed({6, 4})},
        attrs);
  }
}

static void add_products(List& list) {
  list.add(Op::kMatMul, "", {real({3, 4}), real({4, 2})});
  list.add(Op::kMatMul, "batches", {real({2, 3, 4}), real({2, 4, 2})});
  list.add(Op::kMatMul, "batch by matrix", {real({2, 2, 3, 4}), real({4, 2})});
  list.add(Op::kMatMul, "matrix by batch", {real({3, 4}), real({2, 4, 2})});
  list.add(Op::kMatMul, "broadcast batches", {real({2, 1, 3, 4}), real({3, 4, 2})});
  for (bool trans_a : {false, true})
    for (bool trans_b : {false, true}) {
      const std::string note = concat(trans_a ? "A^T " : "A ", trans_b ? "B^T" : "B");
      const Sizes a = trans_a ? Sizes{4, 3} : Sizes{3, 4}, b = trans_b ? Sizes{2, 4} : Sizes{4, 2};
      const auto batch = [](Sizes shape, int64_t size) {
        shape.insert(shape.begin(), size);
        return shape;
      };
      const Attrs fused{{"transA", trans_a}, {"transB", trans_b}, {"alpha", 0.5}};
      Attrs gemm = fused;
      gemm.set("beta", 2.0);
      list.add(Op::kFusedMatMul, note, {real(a), real(b)}, fused);
      list.add(Op::kFusedMatMul, note + " batches", {real(batch(a, 2)), real(batch(b, 2))}, fused);
      list.add(Op::kFusedMatMul, note + " batch by matrix", {real(batch(a, 2)), real(b)}, fused);
      list.add(Op::kGemm, note, {real(a), real(b), real({2})}, gemm);
    }
  const Attrs plain{{"transA", false}, {"transB", true}, {"alpha", 1.0}, {"beta", 1.0}};
  for (bool transposed : {false, true}) {
    // Two rows of the first group, none of the second, and two of no group.
    list.add(Op::kGroupedMatMul, transposed ? "transposed" : "",
             {real({4, 3}), transposed ? real({2, 5, 3}) : real({2, 3, 5}), integers({2}, 2, 2)},
             {{"transB", transposed}});
    list.add(Op::kGroupedMatMulGrad, transposed ? "transposed" : "",
             {fixed({4, 3}), fixed({4, 5}), integers({2}, 2, 2, DType::kI32)}, {{"transB", transposed}});
  }
  list.add(Op::kGemm, "no C", {real({3, 4}), real({2, 4})}, plain);
  list.add(Op::kGemm, "full C", {real({3, 4}), real({2, 4}), real({3, 2})}, plain);
  list.add(Op::kGemm, "column C", {real({3, 4}), real({2, 4}), real({3, 1})}, plain);
  list.add(Op::kGemm, "scalar C", {real({3, 4}), real({2, 4}), real({})}, plain);
}

// Ops that do the casts around them: what is a statistic here is f32 where the others are of 16 bits.
static void add_converting(List& list) {
  const auto in = [](Attrs attrs, DType computes) {
    attrs.set("computes", computes);
    return attrs;
  };
  const auto giving = [&](Attrs attrs, DType computes, DType gives) {
    attrs.set("computes", computes);
    attrs.set("gives", gives);
    return attrs;
  };
  constexpr DType kWide = DType::kF32;
  const Attrs gemm{{"transA", false}, {"transB", true}, {"alpha", 1.0}, {"beta", 1.0}};
  const Attrs fused{{"transA", true}, {"transB", false}, {"alpha", 0.5}};
  const Attrs layer{{"axis", 1}, {"epsilon", 1e-5}}, layer_grad{{"axis", 1}};
  const Attrs dropped{{"ratio", 0.3}, {"stream", 5}};
  const Attrs loss{{"reduction", std::string("mean")}, {"ignore_index", 1}, {"label_smoothing", 0.1}};
  const std::vector<std::pair<Op, Attrs>> functions = {
      {Op::kExp, {}},
      {Op::kLog, {}},
      {Op::kLog1p, {}},
      {Op::kExpm1, {}},
      {Op::kSqrt, {}},
      {Op::kRsqrt, {}},
      {Op::kReciprocal, {}},
      {Op::kSin, {}},
      {Op::kCos, {}},
      {Op::kTanh, {}},
      {Op::kSigmoid, {}},
      {Op::kErf, {}},
      {Op::kHuber, {{"alpha", 0.7}}},
      {Op::kClip, {{"min", 0.6}, {"max", 1.7}}},
      {Op::kSoftplus, {{"beta", 1.0}, {"threshold", 20.0}}},
  };
  for (const DType half : {DType::kBF16, DType::kF16}) {
    const auto add = [&](Op op, const std::string& note, std::vector<ExampleInput> inputs, Attrs attrs) {
      list.add(op, note + ", " + std::string(name(half)), std::move(inputs), std::move(attrs));
    };
    add(Op::kGemm, "rounds b and C", {fixed({3, 4}), statistic({2, 4}), statistic({2})}, in(gemm, half));
    add(Op::kGemm, "rounds a", {statistic({3, 4}), fixed({2, 4}), fixed({3, 2})}, in(gemm, half));
    add(Op::kGemm, "gives f32", {fixed({3, 4}), statistic({2, 4})}, giving(gemm, half, kWide));
    add(Op::kGemm, "large", {statistic({70, 65}), statistic({40, 65})}, giving(gemm, half, kWide));
    add(Op::kFusedMatMul, "rounds b", {fixed({2, 33, 40}), statistic({33, 35})}, in(fused, half));
    add(Op::kMatMul, "rounds a, gives f32", {statistic({2, 3, 4}), fixed({2, 4, 2})}, giving({}, half, kWide));
    add(Op::kLinearCrossEntropyLossGrad, "rounds the weight",
        {statistic({}), fixed({6, 5}, -2, 2), integers({6}, 0, 4), statistic({6}, 2, 3), statistic({5, 3}),
         fixed({6, 3})},
        giving(loss, half, kWide));
    add(Op::kDropoutGrad, "rounds", {statistic({3, 50})}, in(dropped, half));
    add(Op::kBiasDropout, "rounds", {fixed({3, 5}), statistic({5}), statistic({3, 5})}, in(dropped, half));
    for (Op op : {Op::kBiasGelu, Op::kFastGelu})
      add(op, "rounds the bias", {fixed({3, 5}), statistic({5})}, in({}, half));
    for (Op op : {Op::kBiasGeluGrad, Op::kFastGeluGrad})
      add(op, "rounds", {statistic({3, 5}), fixed({3, 5}), statistic({5})}, in({}, half));
    add(Op::kReduceSum, "gives f32", {fixed({6, 5})}, giving({{"axes", Shape{0}}, {"keepdims", false}}, half, kWide));
    for (Op op : {Op::kMul, Op::kDiv})
      add(op, "by a number", {fixed({3, 5}), statistic({}, 0.5, 2)}, giving({}, kWide, half));
    for (Op op : {Op::kAdd, Op::kSub, Op::kMul, Op::kDiv, Op::kPow})
      add(op, "gives 16 bits", {fixed({3, 5}, 0.5, 2), statistic({3, 5}, 0.5, 2)}, giving({}, kWide, half));
    for (const auto& [op, attrs] : functions)
      add(op, "gives 16 bits", {fixed({3, 50}, 0.5, 2)}, giving(attrs, kWide, half));
    add(Op::kLayerNormalization, "gives 16 bits", {statistic({3, 5}), fixed({5}), statistic({5})},
        giving(layer, kWide, half));
    add(Op::kSimplifiedLayerNormalization, "gives 16 bits", {fixed({3, 5}), statistic({5})},
        giving(layer, kWide, half));
  }
  for (Op op : {Op::kAdd, Op::kSub, Op::kMul, Op::kDiv})
    list.add(op, "widens", {fixed({3, 5}), statistic({3, 5})}, in({}, kWide));
  for (const auto& [op, attrs] : functions) list.add(op, "widens", {fixed({3, 50}, 0.5, 2)}, in(attrs, kWide));
  list.add(Op::kLayerNormalizationGrad, "widens",
           {fixed({40, 5}), statistic({40, 5}), statistic({40}), statistic({40}, 0.5, 2), statistic({5})},
           in(layer_grad, kWide));
  list.add(Op::kSimplifiedLayerNormalizationGrad, "widens",
           {statistic({40, 5}), fixed({40, 5}), statistic({40}, 0.5, 2), fixed({5})}, in(layer_grad, kWide));
  list.add(Op::kRotaryEmbedding, "gives 16 bits", {fixed({2, 2, 3, 4}), statistic({3, 4}), statistic({3, 4})},
           giving({{"transposed", false}}, kWide, DType::kBF16));
}

static void add_attention(List& list) {
  const auto attrs = [](bool causal, double dropout) {
    return Attrs{{"is_causal", causal}, {"scale", 0.5}, {"dropout", dropout}, {"stream", 2}};
  };
  const ExampleInput q = real({2, 2, 3, 4}), k = real({2, 2, 5, 4}), v = real({2, 2, 5, 4});
  list.add(Op::kAttention, "", {q, k, v}, attrs(false, 0));
  list.add(Op::kAttention, "causal", {q, real({2, 2, 3, 4}), real({2, 2, 3, 4})}, attrs(true, 0));
  list.add(Op::kAttention, "causal, more keys", {q, k, v}, attrs(true, 0));
  list.add(Op::kAttention, "grouped heads", {real({2, 4, 3, 4}), k, v}, attrs(false, 0));
  list.add(Op::kAttention, "other value size", {q, k, real({2, 2, 5, 3})}, attrs(false, 0));
  list.add(Op::kAttention, "bool mask", {q, k, v, flags({2, 1, 3, 5}, 0.85)}, attrs(false, 0));
  list.add(Op::kAttention, "learnt bias", {q, k, v, real({1, 2, 3, 5})}, attrs(false, 0));
  list.add(Op::kAttention, "learnt bias of keys", {q, k, v, real({5})}, attrs(false, 0));
  list.add(Op::kAttention, "mask and bias", {q, k, v, real({2, 1, 3, 5}), real({2, 1, 5})}, attrs(false, 0));
  list.add(Op::kAttention, "bias of queries", {q, k, v, real({5}), real({2, 3, 1})}, attrs(true, 0));
  const auto wide = [](ExampleInput input) {
    input.is_statistic = true;
    return input;
  };
  list.add(Op::kAttention, "f32 bias of scores", {q, k, v, wide(real({1, 2, 3, 5}))}, attrs(false, 0));
  list.add(Op::kAttention, "f32 mask and bias", {q, k, v, wide(real({2, 1, 3, 5})), wide(real({2, 1, 5}))},
           attrs(true, 0));
  list.add(Op::kAttention, "dropout", {q, k, v}, attrs(false, 0.3));
  list.add(Op::kAttention, "all at once", {real({2, 4, 5, 4}), k, v, real({2, 1, 5, 5})}, attrs(true, 0.2));
}

void add_rows_and_products(List& list) {
  add_norms(list);
  add_losses(list);
  add_ctc_losses(list);
  add_linear_losses(list);
  add_panel_losses(list);
  add_products(list);
  add_converting(list);
  add_attention(list);
  add_recurrences(list);
}

}  // namespace lowtide::examples
