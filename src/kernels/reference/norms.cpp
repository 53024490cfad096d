// Layer, RMS, group and batch normalisation. Each sees x as dims of which some pick the group that shares statistics
// and some pick the weight; all that differs between them is which.
#include <initializer_list>

#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"
#include "kernels/walk.h"

namespace lowtide::reference {

namespace {

enum Role { kX, kY, kDx, kWeight, kBias, kMean, kScale, kDWeight, kDBias, kRoles };
using RoleGrid = Grid<kRoles>;
using Offsets = RoleGrid::Offsets;

struct Frame {
  struct Dim {
    int64_t size;
    bool group, weight;
    Offsets strides;
  };
  int rank = 0;
  Dim dims[kMaxRank + 1] = {};
  const TensorRef* tensors[kRoles] = {};
  bool centred = true;

  double read(Role role, const Offsets& at, const Offsets& more, double absent = 0) const {
    return tensors[role] ? get(*tensors[role], at[role] + more[role]) : absent;
  }
  void write(Role role, const Offsets& at, const Offsets& more, double value) const {
    if (tensors[role]) set(*tensors[role], at[role] + more[role], value);
  }
  template <class Wanted>
  RoleGrid pick(Wanted wanted) const {
    RoleGrid grid;
    for (int i = 0; i < rank; ++i) {
      if (wanted(dims[i])) grid.add_dim(dims[i].size, dims[i].strides);
    }
    return grid;
  }
  RoleGrid groups() const {
    return pick([](const Dim& dim) { return dim.group; });
  }
  RoleGrid members() const {
    return pick([](const Dim& dim) { return !dim.group; });
  }
};

constexpr Offsets kHere{};

// Dims of x with the strides of what has x's shape; `group(i)` and `weight(i)` as in Frame::Dim.
template <class Group, class Weight>
Frame make_frame(std::initializer_list<std::pair<Role, const TensorRef*>> tensors, Group group, Weight weight) {
  Frame frame;
  for (auto [role, tensor] : tensors) frame.tensors[role] = tensor;
  const TensorRef& x = *frame.tensors[kX];
  frame.rank = x.rank;
  for (int i = 0; i < x.rank; ++i) {
    Frame::Dim& dim = frame.dims[i];
    dim = {x.sizes[i], group(i), weight(i), {}};
    for (Role role : {kX, kY, kDx}) {
      if (frame.tensors[role]) dim.strides[role] = frame.tensors[role]->strides[i];
    }
  }
  return frame;
}

// Strides of tensors whose dims are those of x that `has` chooses, in order.
template <class Has>
void attach(Frame& frame, std::initializer_list<Role> roles, Has has) {
  for (Role role : roles) {
    const TensorRef* tensor = frame.tensors[role];
    if (tensor == nullptr) continue;
    int next = 0;
    for (int i = 0; i < frame.rank; ++i) {
      if (has(frame.dims[i])) frame.dims[i].strides[role] = tensor->strides[next++];
    }
  }
}

// Weights that span the trailing dims: matched from the right.
void attach_trailing(Frame& frame, std::initializer_list<Role> roles) {
  for (Role role : roles) {
    const TensorRef* tensor = frame.tensors[role];
    if (tensor == nullptr) continue;
    for (int i = 1; i <= tensor->rank; ++i) {
      frame.dims[frame.rank - i].strides[role] = tensor->strides[tensor->rank - i];
    }
  }
}

void finish(Frame& frame) {
  attach(frame, {kMean, kScale}, [](const Frame::Dim& dim) { return dim.group; });
}

Frame trailing_frame(std::initializer_list<std::pair<Role, const TensorRef*>> tensors, int64_t axis) {
  Frame frame = make_frame(tensors, [=](int i) { return i < axis; }, [=](int i) { return i >= axis; });
  attach_trailing(frame, {kWeight, kBias, kDWeight, kDBias});
  finish(frame);
  return frame;
}

Frame channel_frame(std::initializer_list<std::pair<Role, const TensorRef*>> tensors) {
  Frame frame = make_frame(tensors, [](int i) { return i == 1; }, [](int i) { return i == 1; });
  attach(frame, {kWeight, kBias, kDWeight, kDBias}, [](const Frame::Dim& dim) { return dim.weight; });
  finish(frame);
  return frame;
}

// Dim 1 becomes two: the group and the channel within.
Frame group_frame(std::initializer_list<std::pair<Role, const TensorRef*>> tensors, int64_t groups) {
  Frame frame = make_frame(tensors, [](int i) { return i < 1; }, [](int i) { return i == 1; });
  attach(frame, {kWeight, kBias, kDWeight, kDBias}, [](const Frame::Dim& dim) { return dim.weight; });
  for (int i = frame.rank; i > 2; --i) frame.dims[i] = frame.dims[i - 1];
  ++frame.rank;
  Frame::Dim &outer = frame.dims[1], &inner = frame.dims[2];
  inner = outer;
  inner.size = outer.size / groups;
  outer.size = groups;
  outer.group = true;
  for (int64_t& stride : outer.strides) stride *= inner.size;
  finish(frame);
  return frame;
}

int64_t grain_for(const RoleGrid& members) {
  return std::max<int64_t>(1, 1024 / std::max<int64_t>(members.numel(), 1));
}

struct Statistics {
  double mean, variance;  // the mean square where not centred
};

Statistics measure(const Frame& frame, const RoleGrid& members, const Offsets& group) {
  const double count = static_cast<double>(members.numel());
  double mean = 0, squares = 0;
  if (frame.centred) {
    members.for_each([&](int64_t, const Offsets& at) { mean += frame.read(kX, group, at); });
    mean /= count;
  }
  members.for_each([&](int64_t, const Offsets& at) {
    const double d = frame.read(kX, group, at) - mean;
    squares += d * d;
  });
  return {mean, squares / count};
}

// y = (x - mean) * scale * weight + bias; also(group, statistics) is told each group's.
template <class Also>
KernelStatus normalise(const Frame& frame, double epsilon, Also also) {
  const RoleGrid groups = frame.groups(), members = frame.members();
  parallel_for(groups.numel(), grain_for(members), [&](int64_t begin, int64_t end) {
    groups.for_each(begin, end, [&](int64_t position, const Offsets& group) {
      const Statistics found = measure(frame, members, group);
      const double scale = 1 / std::sqrt(found.variance + epsilon);
      if (frame.tensors[kY]) {
        members.for_each([&](int64_t, const Offsets& at) {
          const double normal = (frame.read(kX, group, at) - found.mean) * scale;
          frame.write(kY, group, at, normal * frame.read(kWeight, group, at, 1) + frame.read(kBias, group, at));
        });
      }
      frame.write(kMean, group, kHere, found.mean);
      frame.write(kScale, group, kHere, scale);
      also(position, found);
    });
  });
  return nullptr;
}

// With g = dy * weight and n = (x - mean) * scale: dx = scale * (g - [mean of g] - n * mean of g*n).
// dweight = sum of dy * n, dbias = sum of dy.
KernelStatus differentiate(const Frame& frame) {
  const RoleGrid groups = frame.groups(), members = frame.members();
  const double count = static_cast<double>(members.numel());
  if (frame.tensors[kDx]) {
    parallel_for(groups.numel(), grain_for(members), [&](int64_t begin, int64_t end) {
      groups.for_each(begin, end, [&](int64_t, const Offsets& group) {
        const double mean = frame.read(kMean, group, kHere), scale = frame.read(kScale, group, kHere);
        double sum = 0, dot = 0;
        members.for_each([&](int64_t, const Offsets& at) {
          const double g = frame.read(kY, group, at) * frame.read(kWeight, group, at, 1);
          sum += g;
          dot += g * (frame.read(kX, group, at) - mean) * scale;
        });
        if (!frame.centred) sum = 0;
        members.for_each([&](int64_t, const Offsets& at) {
          const double g = frame.read(kY, group, at) * frame.read(kWeight, group, at, 1);
          const double normal = (frame.read(kX, group, at) - mean) * scale;
          frame.write(kDx, group, at, scale * (g - sum / count - normal * (dot / count)));
        });
      });
    });
  }
  if (!frame.tensors[kDWeight] && !frame.tensors[kDBias]) return nullptr;
  const RoleGrid weights = frame.pick([](const Frame::Dim& dim) { return dim.weight; });
  const RoleGrid summed = frame.pick([](const Frame::Dim& dim) { return !dim.weight; });
  parallel_for(weights.numel(), grain_for(summed), [&](int64_t begin, int64_t end) {
    weights.for_each(begin, end, [&](int64_t, const Offsets& weight) {
      double sum = 0, dot = 0;
      summed.for_each([&](int64_t, const Offsets& at) {
        const double g = frame.read(kY, weight, at);
        sum += g;
        dot += g * (frame.read(kX, weight, at) - frame.read(kMean, weight, at)) * frame.read(kScale, weight, at);
      });
      frame.write(kDWeight, weight, kHere, dot);
      frame.write(kDBias, weight, kHere, sum);
    });
  });
  return nullptr;
}

constexpr auto kNothingElse = [](int64_t, const Statistics&) {};

}  // namespace

KernelStatus layer_norm(const KernelCall& call, const Norm& norm) {
  const Frame frame = trailing_frame({{kX, &call.inputs[0]},
                                      {kWeight, input(call, 1)},
                                      {kBias, input(call, 2)},
                                      {kY, output(call, 0)},
                                      {kMean, output(call, 1)},
                                      {kScale, output(call, 2)}},
                                     norm.axis);
  return normalise(frame, norm.epsilon, kNothingElse);
}

KernelStatus layer_norm_grad(const KernelCall& call, const Axis& along) {
  return differentiate(trailing_frame({{kY, &call.inputs[0]},
                                       {kX, &call.inputs[1]},
                                       {kMean, &call.inputs[2]},
                                       {kScale, &call.inputs[3]},
                                       {kWeight, input(call, 4)},
                                       {kDx, output(call, 0)},
                                       {kDWeight, output(call, 1)},
                                       {kDBias, output(call, 2)}},
                                      along.axis));
}

KernelStatus rms_norm(const KernelCall& call, const Norm& norm) {
  Frame frame = trailing_frame(
      {{kX, &call.inputs[0]}, {kWeight, input(call, 1)}, {kY, output(call, 0)}, {kScale, output(call, 1)}}, norm.axis);
  frame.centred = false;
  return normalise(frame, norm.epsilon, kNothingElse);
}

KernelStatus rms_norm_grad(const KernelCall& call, const Axis& along) {
  Frame frame = trailing_frame({{kY, &call.inputs[0]},
                                {kX, &call.inputs[1]},
                                {kScale, &call.inputs[2]},
                                {kWeight, input(call, 3)},
                                {kDx, output(call, 0)},
                                {kDWeight, output(call, 1)}},
                               along.axis);
  frame.centred = false;
  return differentiate(frame);
}

KernelStatus group_norm(const KernelCall& call, const GroupNorm& norm) {
  const Frame frame = group_frame({{kX, &call.inputs[0]},
                                   {kWeight, input(call, 1)},
                                   {kBias, input(call, 2)},
                                   {kY, output(call, 0)},
                                   {kMean, output(call, 1)},
                                   {kScale, output(call, 2)}},
                                  norm.groups);
  return normalise(frame, norm.epsilon, kNothingElse);
}

KernelStatus group_norm_grad(const KernelCall& call, const Groups& grouping) {
  return differentiate(group_frame({{kY, &call.inputs[0]},
                                    {kX, &call.inputs[1]},
                                    {kMean, &call.inputs[2]},
                                    {kScale, &call.inputs[3]},
                                    {kWeight, input(call, 4)},
                                    {kDx, output(call, 0)},
                                    {kDWeight, output(call, 1)},
                                    {kDBias, output(call, 2)}},
                                   grouping.groups));
}

KernelStatus batch_norm(const KernelCall& call, const BatchNorm& norm) {
  const Frame frame = channel_frame({{kX, &call.inputs[0]},
                                     {kWeight, input(call, 1)},
                                     {kBias, input(call, 2)},
                                     {kY, output(call, 0)},
                                     {kMean, output(call, 1)},
                                     {kScale, output(call, 2)}});
  const double count = static_cast<double>(frame.members().numel());
  auto update = [&](size_t old_index, size_t new_index, int64_t channel, double batch) {
    const TensorRef *old_value = input(call, old_index), *new_value = output(call, new_index);
    if (!old_value || !new_value) return;
    const double old = get(*old_value, channel * old_value->strides[0]);
    set(*new_value, channel * new_value->strides[0], (1 - norm.momentum) * old + norm.momentum * batch);
  };
  return normalise(frame, norm.epsilon, [&](int64_t channel, const Statistics& found) {
    update(3, 3, channel, found.mean);
    update(4, 4, channel, found.variance * count / (count - 1));
  });
}

KernelStatus batch_norm_grad(const KernelCall& call) {
  return differentiate(channel_frame({{kY, &call.inputs[0]},
                                      {kX, &call.inputs[1]},
                                      {kMean, &call.inputs[2]},
                                      {kScale, &call.inputs[3]},
                                      {kWeight, input(call, 4)},
                                      {kDx, output(call, 0)},
                                      {kDWeight, output(call, 1)},
                                      {kDBias, output(call, 2)}}));
}

}  // namespace lowtide::reference
