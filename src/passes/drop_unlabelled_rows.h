#pragma once

#include "passes/pass.h"

namespace lowtide {

// Rows whose label is ignore_index have no part in a cross entropy: it gets the others alone, and so does what computes
// the logits, as far up as rows are computed one by one (upstream_rows.h).
//   %z = Gemm %x, %w                                   %m = NotEqual %labels, -100
//   %loss, _ = SoftmaxCrossEntropyLoss %z, %labels     %count = CountTrue %m
//                                                 →    _ = DataSize(symbol="labelled") %count, %labels
//                                                      %xs = Compress(size=labelled) %x, %m
//                                                      %ls = Compress(size=labelled) %labels, %m
//                                                      %zs = Gemm %xs, %w
//                                                      %loss, _ = SoftmaxCrossEntropyLoss %zs, %ls
// Left alone: losses without a reduction, or of logits that somebody else reads, or that no product computes. Sums run
// over fewer rows, so that bits are others than without. Requires: PassOptions::label_sparsity, else nothing is done.
// Leaves: dead nodes (run dce).
bool drop_unlabelled_rows(Graph& graph, const PassOptions& options);

}  // namespace lowtide
