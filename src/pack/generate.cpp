#include "pack/generate.h"

#include <algorithm>

#include "base/check.h"
#include "base/text.h"
#include "pack/random.h"

namespace lowtide {
namespace {

constexpr int64_t kFloat = 4;

// A forward operation, as far as memory is concerned.
struct Op {
  int64_t output = 0;         // bytes made
  bool stashed = false;       // backward reads the output, else it dies with its next reader
  int64_t statistics = 0;     // small stashed side result (means, log-sum-exp, masks); 0 for none
  int64_t weight = 0;         // bytes of the weight, hence of its gradient; 0 for none
  int64_t scratch = 0;        // of the kernel, both ways
  int32_t residual_from = 0;  // this many ops earlier something was made that is added here; 0 for none
};

void add_transformer_layer(std::vector<Op>& ops, int64_t tokens, int64_t width, int64_t heads, int64_t widening) {
  const int64_t row = tokens * width * kFloat;
  const int64_t square = width * width * kFloat;
  ops.push_back({.output = row, .stashed = true, .statistics = tokens * 2 * kFloat, .weight = 2 * width * kFloat});
  ops.push_back({.output = 3 * row, .stashed = true, .weight = 3 * square});
  ops.push_back({.output = row, .stashed = true, .statistics = tokens * heads * kFloat, .scratch = width * 1024});
  ops.push_back({.output = row, .weight = square});
  ops.push_back({.output = row, .stashed = true, .statistics = row / 32, .residual_from = 5});
  ops.push_back({.output = row, .stashed = true, .statistics = tokens * 2 * kFloat, .weight = 2 * width * kFloat});
  ops.push_back({.output = widening * row, .stashed = true, .weight = widening * square});
  ops.push_back({.output = widening * row, .stashed = true});
  ops.push_back({.output = row, .weight = widening * square});
  ops.push_back({.output = row, .stashed = true, .statistics = row / 32, .residual_from = 5});
}

void add_loss(std::vector<Op>& ops, int64_t tokens, int64_t width, int64_t vocabulary) {
  const int64_t logits = tokens * vocabulary * kFloat;
  ops.push_back({.output = logits, .stashed = true, .weight = vocabulary * width * kFloat, .scratch = width * 4096});
  ops.push_back({.output = logits, .stashed = true, .statistics = tokens * kFloat});
  ops.push_back({.output = kFloat});
}

std::vector<Op> transformer(int32_t layers, SplitMix& rng) {
  const int64_t width = 64 * rng.between(4, 20);
  const int64_t tokens = int64_t{128} << rng.between(1, 6);
  const int64_t widening = rng.between(2, 4);
  std::vector<Op> ops = {{.output = tokens * width * kFloat, .weight = 8000 * width * kFloat}};
  for (int32_t layer = 0; layer < layers; ++layer) add_transformer_layer(ops, tokens, width, width / 64, widening);
  add_loss(ops, tokens, width, 1000 * rng.between(8, 50));
  return ops;
}

std::vector<Op> convolution_network(int32_t layers, SplitMix& rng) {
  const int64_t batch = int64_t{1} << rng.between(2, 6);
  int64_t side = 16 * rng.between(4, 14), channels = 16 * rng.between(2, 5);
  std::vector<Op> ops;
  const int32_t stage = std::max(1, layers / 4);
  for (int32_t layer = 0; layer < layers; ++layer) {
    if (layer > 0 && layer % stage == 0 && side > 4) {
      side /= 2;
      channels *= 2;
    }
    const int64_t map = batch * side * side * channels * kFloat;
    const int32_t kernel = rng.chance(50) ? 9 : 1;
    const bool residual = layer % 3 == 2 && layer % stage >= 3;
    ops.push_back({.output = map,
                   .stashed = true,
                   .weight = kernel * channels * channels * kFloat,
                   .scratch = kernel == 9 ? map / 4 : 0});
    ops.push_back(
        {.output = map, .stashed = true, .statistics = 2 * channels * kFloat, .weight = 2 * channels * kFloat});
    ops.push_back({.output = map, .stashed = rng.chance(40), .residual_from = residual ? 6 : 0});
  }
  ops.push_back({.output = batch * channels * kFloat, .stashed = true});
  add_loss(ops, batch, channels, 1000);
  return ops;
}

std::vector<Op> irregular(int32_t layers, SplitMix& rng) {
  const int64_t tokens = int64_t{64} << rng.between(2, 6);
  std::vector<Op> ops;
  int64_t width = 64 * rng.between(2, 16);
  for (int32_t i = 0; i < 10 * layers; ++i) {
    if (rng.chance(8)) width = 64 * rng.between(1, 24);
    Op op{.output = tokens * width * kFloat * rng.between(1, 4), .stashed = rng.chance(60)};
    if (rng.chance(30)) op.statistics = tokens * kFloat * rng.between(1, 16);
    if (rng.chance(40)) op.weight = width * 64 * kFloat * rng.between(1, 16);
    if (rng.chance(15)) op.scratch = 1024 * rng.between(1, 2000);
    if (rng.chance(15)) op.residual_from = std::min(i, rng.between(2, 40));
    ops.push_back(op);
  }
  add_loss(ops, tokens, width, 1000 * rng.between(1, 30));
  return ops;
}

// The lifetimes of one step over `ops`. Forward op i runs in step i, its backward in step 2N-1-i.
Problem train(const std::vector<Op>& ops, int32_t tokens_percent, SplitMix& rng) {
  const auto forward = static_cast<int32_t>(ops.size());
  const int32_t end = 2 * forward;
  std::vector<int32_t> last_read(ops.size());  // of each op's output, in the forward direction
  std::vector<bool> branches(ops.size());      // the output is read by a residual too
  for (int32_t i = 0; i < forward; ++i) {
    last_read[i] = std::min(i + 1, forward - 1);
    const int32_t from = ops[i].residual_from;
    if (from == 0) continue;
    last_read[i - from] = std::max(last_read[i - from], i);
    branches[i - from] = true;
  }
  Problem problem;
  const auto add = [&](int64_t bytes, int32_t first, int32_t last) {
    if (bytes > 0) problem.buffers.push_back({.size_bytes = bytes, .first = first, .last = last});
  };
  for (int32_t i = 0; i < forward; ++i) {
    Op op = ops[i];
    op.output = op.output * tokens_percent / 100;
    op.statistics = op.statistics * tokens_percent / 100;
    const int32_t backward = end - 1 - i;
    // The backward of the next op reads the output (its input), or this op's own does (as for a GELU or softmax).
    add(op.output, i, op.stashed ? backward - (rng.chance(70) && i + 1 < forward ? 1 : 0) : last_read[i]);
    add(op.statistics, i, backward);
    add(op.scratch, i, i);
    add(op.scratch, backward, backward);
    // The gradient of the output is made by its last forward reader's backward and waits there for the others.
    if (i + 1 < forward) add(op.output, branches[i] ? end - 1 - last_read[i] : backward - 1, backward);
    add(op.weight, backward, end);
  }
  return problem;
}

// Gradients about as large as the activations that die meanwhile, sizes without common measure, last reads shifted.
Problem crossing(int32_t buffers, int32_t tokens_percent, SplitMix& rng) {
  const int32_t forward = buffers * 2 / 7, end = 2 * forward;
  const int64_t unit = 128 * rng.between(100, 1000);
  const uint32_t spread = rng.below(4);
  Problem problem;
  const auto add = [&](int64_t bytes, int32_t first, int32_t last) {
    last = std::clamp(last, first, end);
    problem.buffers.push_back({.size_bytes = bytes, .first = first, .last = last});
  };
  const auto activation = [&]() -> int64_t {
    switch (spread) {
      case 0: return 8 * unit;
      case 1: return unit * rng.between(1, 16);
      case 2: return 8 * unit * rng.between(1, 4);
      default: return unit * rng.between(1, 64) * rng.between(1, 64) / 8;
    }
  };
  for (int32_t i = 0; i < forward; ++i) {
    const int32_t backward = end - 1 - i;
    const int64_t bytes = activation() * tokens_percent / 100;
    const int32_t shift = rng.chance(30) ? rng.between(-20, 20) : 0;
    add(bytes, i, rng.chance(65) ? std::max(i + 1, backward + shift) : i + rng.between(1, 4));
    if (rng.chance(10)) add(bytes / 3, i, rng.between(i, end));
    add(bytes, backward - 1, backward + (rng.chance(20) ? rng.between(0, 12) : 0));
    if (rng.chance(70)) add(unit * rng.between(1, 18), backward, rng.chance(85) ? end : rng.between(backward, end));
    if (rng.chance(10)) add(bytes * 2 / 3, i, i);
    if (rng.chance(20)) add(bytes * 2 / 3, backward, backward);
  }
  return problem;
}

// Cuts the problem down to `buffers`, or fills it up with short-lived odds and ends.
void fill_up(Problem& problem, int32_t buffers, SplitMix& rng) {
  if (problem.buffers.size() > static_cast<size_t>(buffers)) problem.buffers.resize(buffers);
  int32_t last = 1;
  for (const Buffer& buffer : problem.buffers) last = std::max(last, buffer.last);
  while (static_cast<int32_t>(problem.buffers.size()) < buffers) {
    const int32_t first = rng.between(0, last - 1);
    problem.buffers.push_back({.size_bytes = int64_t{4} << rng.between(0, 16),
                               .first = first,
                               .last = std::min(last, first + rng.between(0, 3))});
  }
}

}  // namespace

Problem generate_training(int32_t buffers, uint64_t seed, int32_t tokens_percent) {
  LT_CHECK(buffers >= 100, "a training step of ", buffers, " buffers is too small");
  SplitMix odds(seed + 1000);
  Problem problem;
  if (seed % 4 == 3) {
    SplitMix rng(seed);
    problem = crossing(buffers, tokens_percent, rng);
    fill_up(problem, buffers, odds);
    return problem;
  }
  // The largest network that fits.
  for (int32_t layers = 1;; ++layers) {
    SplitMix rng(seed);
    const auto ops = seed % 4 == 0   ? irregular(layers, rng)
                     : seed % 4 == 1 ? transformer(layers, rng)
                                     : convolution_network(layers, rng);
    Problem next = train(ops, tokens_percent, rng);
    if (static_cast<int32_t>(next.buffers.size()) > buffers) break;
    problem = std::move(next);
  }
  fill_up(problem, buffers, odds);
  return problem;
}

Problem generate_random(int32_t buffers, uint64_t seed) {
  SplitMix rng(seed);
  Problem problem;
  const bool mixed_alignment = rng.chance(30);
  const int32_t steps = std::max(2, buffers);
  const int32_t longest = rng.between(1, std::max(2, steps / 2));
  for (int32_t i = 0; i < buffers; ++i) {
    Buffer buffer;
    buffer.size_bytes = rng.chance(3) ? 0 : rng.between(1, 255) << rng.between(0, 14);
    if (mixed_alignment) buffer.alignment = int64_t{1} << rng.between(0, 8);
    buffer.first = rng.between(0, steps - 1);
    const int32_t duration = rng.chance(70) ? rng.between(1, std::max(1, longest / 8)) : rng.between(1, longest);
    buffer.last = std::min(steps - 1, buffer.first + duration - 1);
    problem.buffers.push_back(buffer);
  }
  return problem;
}

Problem generate_tiling(int32_t buffers, uint64_t seed) {
  SplitMix rng(seed);
  struct Tile {
    int32_t low, high, first, last;  // units of 64 bytes [low, high), steps [first, last]
    int64_t area() const { return int64_t{high - low} * (last - first + 1); }
    bool may_be_cut() const { return high - low > 1 || last > first; }
  };
  std::vector<Tile> tiles = {{0, 16384, 0, 4 * buffers - 1}};
  while (static_cast<int32_t>(tiles.size()) < buffers) {
    // The larger of some, so that sizes differ but none is most of the arena.
    size_t chosen = rng.below(static_cast<uint32_t>(tiles.size()));
    for (int i = 0; i < 3; ++i) {
      const size_t other = rng.below(static_cast<uint32_t>(tiles.size()));
      if (tiles[other].area() > tiles[chosen].area()) chosen = other;
    }
    Tile tile = tiles[chosen];
    if (!tile.may_be_cut()) continue;
    Tile rest = tile;
    if (tile.last == tile.first || (tile.high - tile.low > 1 && rng.chance(50))) {
      tile.high = rest.low = rng.between(tile.low + 1, tile.high - 1);
    } else {
      tile.last = rng.between(tile.first, tile.last - 1);
      rest.first = tile.last + 1;
    }
    tiles[chosen] = tile;
    tiles.push_back(rest);
  }
  Problem problem;
  for (const Tile& tile : tiles)
    problem.buffers.push_back(
        {.size_bytes = 64 * int64_t{tile.high - tile.low}, .first = tile.first, .last = tile.last});
  return problem;
}

std::vector<NamedProblem> training_problems() {
  std::vector<NamedProblem> problems;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    problems.push_back({concat("training/1000/", seed), generate_training(1000, seed)});
  }
  return problems;
}

}  // namespace lowtide
