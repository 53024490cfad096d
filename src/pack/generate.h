// Named packing problems made from a seed, the same on every machine: for tests and benchmarks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pack/problem.h"

namespace lowtide {

// One training step: N forward steps, the loss, N backward steps. Step i makes an activation that backward step 2N-1-i
// reads last, or a value that dies after the next step; backward makes gradients of activations (short-lived, some
// waiting at a residual) and of weights (live until the end); logits are huge; kernels take scratch.
// Seeds go round four kinds: irregular mixtures, transformers, convolution networks, and steps whose lifetimes cross
// instead of nesting and whose live bytes stay nearly flat through backward (the hard ones).
// `tokens_percent` gives the same step at another sequence length: activations scale with it, weights do not.
Problem generate_training(int32_t buffers, uint64_t seed, int32_t tokens_percent = 100);

// Independent lifetimes, log-uniform sizes, mixed alignments: nothing to hold on to.
Problem generate_random(int32_t buffers, uint64_t seed);

// A full arena of 16,384 units of 64 bytes over 4 steps a buffer, cut into buffers: the lower bound is the optimum.
Problem generate_tiling(int32_t buffers, uint64_t seed);

struct NamedProblem {
  std::string name;  // "training/1000/7": family, buffers, seed
  Problem problem;
};

// The 20 problems of 1,000 buffers with forward-backward lifetimes that packing is judged by (seeds 1-20).
std::vector<NamedProblem> training_problems();

}  // namespace lowtide
