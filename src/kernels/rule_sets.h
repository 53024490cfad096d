// The rules of operands that kernels share, for the lists.
#pragma once

#include "kernels/kernel.h"

namespace lowtide {

// One rule for every input, and one for the first output.
constexpr OperandRules every_input(Accept accept, OutputRule output = {}) {
  OperandRules rules;
  rules.inputs.fill(accept);
  rules.outputs[0] = output;
  return rules;
}
constexpr OperandRules with_output_layout(OperandRules rules, OutputLayout layout) {
  for (OutputRule& output : rules.outputs) output.layout = layout;
  return rules;
}

// Row-major operands, the output onto the first or the second of them.
constexpr OperandRules kRowsInPlace = every_input(Accept::kRowMajor, {.takes = 0});
constexpr OperandRules kRowsOntoSecond = every_input(Accept::kRowMajor, {.takes = 1});

constexpr OperandRules kDense = every_input(Accept::kDense);

constexpr OperandRules kAnyStrides = every_input(Accept::kAny);
constexpr OperandRules kAnyStridesInPlace = every_input(Accept::kAny, {.takes = 0});
constexpr OperandRules kAnyStridesOntoSecond = every_input(Accept::kAny, {.takes = 1});
constexpr OperandRules kCopies = every_input(Accept::kAny, {.layout = OutputLayout::kAsAsked});
constexpr OperandRules kSumInPlace = every_input(Accept::kAny, {.takes = 0, .is_sum_of_inputs = true});
// Row-major or strided operands; the seventh is a gradient that may be missing.
constexpr OperandRules lacking(OperandRules rules, int8_t input) {
  rules.may_lack = input;
  return rules;
}
constexpr OperandRules kLinearLossGrad = lacking(kAnyStrides, 6);
constexpr OperandRules kLinearLossGradRows = lacking({}, 6);
// (dx, dweight, dbias) from logits that lie where dweight goes.
constexpr OperandRules kPanelLossGradRows = {.outputs = {OutputRule{}, OutputRule{.takes = 1}}};
constexpr OperandRules kImages = with_output_layout(every_input(Accept::kChannelsLast), OutputLayout::kChannelsLast);
// Attention and its gradient (dq, dk, dv).
constexpr OperandRules kHeads = with_output_layout(kAnyStrides, OutputLayout::kHeadsLast);
// The same where rows of heads are read as they lie: q, k, v, mask?, bias? and dy, q, k, v, y, lse, mask?, bias?.
constexpr OperandRules kHeadRows =
    with_output_layout({.inputs = {Accept::kInnerDense, Accept::kInnerDense, Accept::kInnerDense, Accept::kAnyRepeated,
                                   Accept::kAnyRepeated}},
                       OutputLayout::kHeadsLast);
constexpr OperandRules kHeadRowsGrad =
    with_output_layout({.inputs = {Accept::kInnerDense, Accept::kInnerDense, Accept::kInnerDense, Accept::kInnerDense,
                                   Accept::kInnerDense, Accept::kRowMajor, Accept::kAnyRepeated}},
                       OutputLayout::kHeadsLast);
// dq, dk and dv onto q, k and v, or, packed, onto what these are the parts of.
constexpr OperandRules onto_heads(OperandRules rules) {
  for (int8_t i = 0; i < 3; ++i) rules.outputs[static_cast<size_t>(i)].takes = static_cast<int8_t>(1 + i);
  rules.outputs[0].takes_whole_of = 1;
  return rules;
}
constexpr OperandRules kHeadRowsGradInPlace = onto_heads(kHeadRowsGrad);

}  // namespace lowtide
