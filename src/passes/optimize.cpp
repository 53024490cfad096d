#include "passes/optimize.h"

#include <algorithm>

#include "passes/absorb_casts.h"
#include "passes/cse.h"
#include "passes/dce.h"
#include "passes/drop_detach.h"
#include "passes/drop_unlabelled_rows.h"
#include "passes/drop_unread.h"
#include "passes/exact_factors.h"
#include "passes/fold.h"
#include "passes/fuse_attention.h"
#include "passes/fuse_bias_dropout.h"
#include "passes/fuse_bias_gelu.h"
#include "passes/fuse_bias_softmax.h"
#include "passes/fuse_gelu.h"
#include "passes/fuse_linear_cross_entropy.h"
#include "passes/fuse_linear_cross_entropy_grad.h"
#include "passes/fuse_matmul.h"
#include "passes/fuse_rms_norm.h"
#include "passes/fuse_rotary.h"
#include "passes/gather_onto.h"
#include "passes/number_pool_places.h"
#include "passes/pack_attention_grad.h"
#include "passes/panel_linear_cross_entropy.h"
#include "passes/patch_conv.h"
#include "passes/propagate_casts.h"
#include "passes/simplify_attention.h"

namespace lowtide {

namespace {

// Patterns stand on folded, merged graphs; each fused op has its own gradient rule.
constexpr Pass kForward[] = {
    {"fold", fold},
    {"cse", cse},
    {"dce", dce},
    // Before patterns take ops together: what they make of fewer rows is the same.
    {"drop_unlabelled_rows", nullptr, drop_unlabelled_rows},
    {"dce", dce},
    {"patch_conv", patch_conv},
    {"fuse_gelu", fuse_gelu},
    // What wrote an activation out still reads the sum below it.
    {"dce", dce},
    {"fuse_bias_gelu", fuse_bias_gelu},
    {"fuse_rms_norm", fuse_rms_norm},
    {"fuse_rotary", fuse_rotary},
    {"simplify_attention", simplify_attention},
    // Before products take transposes in, after written-out activations in f32 were found.
    {"propagate_casts", nullptr, propagate_casts},
    {"fuse_matmul", fuse_matmul},
    {"fuse_attention", fuse_attention},
    {"simplify_attention", simplify_attention},
    {"fuse_bias_softmax", fuse_bias_softmax},
    {"fuse_bias_dropout", fuse_bias_dropout},
    {"fuse_linear_cross_entropy", fuse_linear_cross_entropy},
    // Fused nodes bring views and sums of their own.
    {"fold", fold},
    {"cse", cse},
    {"dce", dce},
};

constexpr Pass kTraining[] = {
    {"drop_detach", drop_detach},
    {"pack_attention_grad", pack_attention_grad},
    {"number_pool_places", number_pool_places},
    {"dce", dce},
    {"fold", fold},
    {"cse", cse},
    {"fuse_matmul", fuse_matmul},
    {"fuse_linear_cross_entropy_grad", fuse_linear_cross_entropy_grad},
    {"gather_onto", gather_onto},
    {"dce", dce},
    // Before it only one dtype an op: the patterns above know no other.
    {"absorb_casts", absorb_casts},
    {"exact_factors", exact_factors},
    {"panel_linear_cross_entropy", panel_linear_cross_entropy},
    {"dce", dce},
    {"drop_unread", drop_unread},
};

constexpr Pass kAll[] = {
    {"fold", fold},
    {"cse", cse},
    {"dce", dce},
    {"drop_unlabelled_rows", nullptr, drop_unlabelled_rows},
    {"patch_conv", patch_conv},
    {"fuse_gelu", fuse_gelu},
    {"fuse_bias_gelu", fuse_bias_gelu},
    {"fuse_rms_norm", fuse_rms_norm},
    {"fuse_rotary", fuse_rotary},
    {"simplify_attention", simplify_attention},
    {"propagate_casts", nullptr, propagate_casts},
    {"fuse_matmul", fuse_matmul},
    {"fuse_attention", fuse_attention},
    {"fuse_bias_softmax", fuse_bias_softmax},
    {"fuse_bias_dropout", fuse_bias_dropout},
    {"fuse_linear_cross_entropy", fuse_linear_cross_entropy},
    {"drop_detach", drop_detach},
    {"pack_attention_grad", pack_attention_grad},
    {"number_pool_places", number_pool_places},
    {"fuse_linear_cross_entropy_grad", fuse_linear_cross_entropy_grad},
    {"gather_onto", gather_onto},
    {"absorb_casts", absorb_casts},
    {"exact_factors", exact_factors},
    {"panel_linear_cross_entropy", panel_linear_cross_entropy},
    {"drop_unread", drop_unread},
};

}  // namespace

std::span<const Pass> all_passes() { return kAll; }

const Pass* find_pass(std::string_view name) {
  const auto at = std::find_if(std::begin(kAll), std::end(kAll), [&](const Pass& pass) { return pass.name == name; });
  return at == std::end(kAll) ? nullptr : at;
}

void optimize_forward(Graph& graph, const PassOptions& options) { run_passes(graph, kForward, options); }

void optimize_training(Graph& graph, const PassOptions& options) { run_passes(graph, kTraining, options); }

}  // namespace lowtide
