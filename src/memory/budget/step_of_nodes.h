// Steps in numbers for tests: written by hand, or drawn.
#pragma once

#include <algorithm>

#include "memory/budget/model.h"
#include "pack/random.h"

namespace lowtide {

struct StepNode {
  std::vector<int32_t> reads;  // values, numbered as nodes make them
  std::vector<int64_t> makes;  // bytes of each
  double milliseconds = 1;
  bool may_run_again = true;
};

// Node `yield` is YieldOp; what stands before it is forward. Nobody holds what is made, and the nodes of backward are
// there for what the step returns.
inline StepModel step_of(const std::vector<StepNode>& nodes, int32_t yield) {
  StepModel model;
  model.yield = yield;
  model.positions = static_cast<int32_t>(nodes.size());
  for (int32_t position = 0; position < model.positions; ++position) {
    const StepNode& node = nodes[static_cast<size_t>(position)];
    const bool in_forward = position < yield;
    for (int64_t bytes : node.makes) {
      model.makes.ids.push_back(static_cast<int32_t>(model.values.size()));
      ModelValue value;
      value.bytes = bytes;
      value.producer = value.last_in_forward = position;
      value.is_optional = in_forward;
      value.may_run_again = in_forward && node.may_run_again;
      model.values.push_back(value);
    }
    model.makes.finish_item();
    for (int32_t read : node.reads) {
      model.reads.ids.push_back(read);
      if (in_forward) model.reads_again.ids.push_back(read);
      ModelValue& value = model.values[static_cast<size_t>(read)];
      if (position <= yield) value.last_in_forward = position;
      if (position > yield && value.first_in_backward < 0) value.first_in_backward = position;
    }
    model.reads.finish_item();
    model.reads_again.finish_item();
    model.milliseconds.push_back(node.milliseconds);
    model.is_kept_alive.push_back(position >= yield);
  }
  model.takeovers.resize(nodes.size());
  model.scratch.assign(nodes.size(), 0);
  model.copies.assign(nodes.size(), 0);
  return model;
}

// A chain of `forward` nodes with branches, and a backward that reads some of what they make; now and then a node with
// two results, one that must not run again, one that only backward needs, takeovers, scratch and values that may be
// packed.
inline StepModel draw_step(uint64_t seed, int32_t forward) {
  SplitMix rng(seed);
  std::vector<StepNode> nodes;
  int32_t values = 0;
  const auto make = [&](StepNode& node) {
    for (int i = rng.chance(10) ? 2 : 1; i > 0; --i, ++values)
      node.makes.push_back(64 * rng.between(1, 20) * (rng.chance(25) ? 8 : 1));
  };
  const auto reads = [&](StepNode& node, int32_t low, int count) {
    for (int i = 0; i < count && values > low; ++i) {
      const int32_t value = rng.between(std::max(low, values - 4), values - 1);
      if (std::find(node.reads.begin(), node.reads.end(), value) == node.reads.end()) node.reads.push_back(value);
    }
  };
  for (int32_t i = 0; i < forward; ++i) {
    StepNode node;
    node.milliseconds = 0.01 * static_cast<double>(rng.chance(10) ? 0 : rng.between(1, 200));
    node.may_run_again = !rng.chance(8);
    reads(node, 0, rng.between(1, 2));
    make(node);
    nodes.push_back(std::move(node));
  }
  const int32_t of_forward = values;
  StepNode yield;
  yield.reads = {values - 1};
  nodes.push_back(std::move(yield));
  for (int32_t i = forward; i-- > 0;) {
    if (rng.chance(20)) continue;
    StepNode node;
    node.milliseconds = 0.02 * static_cast<double>(rng.between(1, 200));
    const int32_t saved = std::min(rng.between(i, i + 1), of_forward - 1);
    node.reads = {saved};
    reads(node, of_forward, rng.between(1, 2));
    make(node);
    nodes.push_back(std::move(node));
  }
  StepModel model = step_of(nodes, forward);
  for (size_t position = 0; position < nodes.size(); ++position) {
    if (rng.chance(16)) model.scratch[position] = 64 * rng.between(1, 10);
    const std::span<const int32_t> made = model.makes[position], read = model.reads[position];
    if (made.empty() || read.empty() || !rng.chance(33)) continue;
    ModelValue& to = model.values[static_cast<size_t>(made[0])];
    const ModelValue& from = model.values[static_cast<size_t>(read[0])];
    to.bytes = from.bytes;
    model.takeovers[position].push_back({made[0], read[0]});
  }
  // By a generator of their own: some values may wait in fewer bits.
  SplitMix packing(seed + 1000000);
  for (ModelValue& value : model.values) {
    if (!value.is_optional || !packing.chance(25)) continue;
    value.packed_bytes = std::max<int64_t>(64, value.bytes / (packing.chance(50) ? 8 : 4) / 64 * 64);
    value.packing_milliseconds = 0.01 * static_cast<double>(packing.between(1, 100));
    if (value.packed_bytes >= value.bytes) value.packed_bytes = 0;
  }
  // Some nodes of forward are there for the host, and so are those whose results nobody reads.
  std::vector<bool> is_read(model.values.size());
  for (int32_t read : model.reads.ids) is_read[static_cast<size_t>(read)] = true;
  for (size_t i = 0; i < static_cast<size_t>(forward); ++i)
    for (int32_t made : model.makes[i])
      if (rng.chance(12) || !is_read[static_cast<size_t>(made)]) model.is_kept_alive[i] = true;
  return model;
}

}  // namespace lowtide
