// Layer, RMS, group and batch normalisation. Each sees x as dims of which some pick the group that shares statistics
// and some pick the weight; all that differs between them is which.
#include <algorithm>
#include <initializer_list>

#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"
#include "kernels/walk.h"

namespace lowtide::reference {

namespace {

using Offsets = NormGrid::Offsets;
constexpr Offsets kHere{};

// The operands by what they are to a norm; of one that is not there, a null pointer.
struct Operands {
  struct Place {
    NormRole role;
    bool is_output;
    size_t index;
  };

  Operands(const KernelCall& call, std::span<const Place> places) {
    for (const Place& place : places)
      tensors[place.role] = place.is_output ? output(call, place.index) : input(call, place.index);
  }
  template <bool kF64>
  double read(NormRole role, const Offsets& at, const Offsets& more, double absent = 0) const {
    if (!tensors[role]) return absent;
    if constexpr (kF64) return tensors[role]->template as<double>()[at[role] + more[role]];
    return get(*tensors[role], at[role] + more[role]);
  }
  template <bool kF64>
  void write(NormRole role, const Offsets& at, const Offsets& more, double value) const {
    if (!tensors[role]) return;
    if constexpr (kF64) {
      tensors[role]->template as<double>()[at[role] + more[role]] = value;
    } else {
      set(*tensors[role], at[role] + more[role], value);
    }
  }
  bool are_f64() const {
    return std::all_of(tensors, tensors + kNormRoles,
                       [](const TensorRef* tensor) { return tensor == nullptr || tensor->dtype == DType::kF64; });
  }
  bool has(NormRole role) const { return tensors[role] != nullptr; }

  const TensorRef* tensors[kNormRoles] = {};
};
using Places = std::span<const Operands::Place>;

constexpr Operands::Place kForward[] = {{kX, false, 0}, {kWeight, false, 1}, {kBias, false, 2},
                                        {kY, true, 0},  {kMean, true, 1},    {kScale, true, 2}};
constexpr Operands::Place kBackward[] = {{kY, false, 0},      {kX, false, 1}, {kMean, false, 2},   {kScale, false, 3},
                                         {kWeight, false, 4}, {kDx, true, 0}, {kDWeight, true, 1}, {kDBias, true, 2}};
constexpr Operands::Place kRmsForward[] = {{kX, false, 0}, {kWeight, false, 1}, {kY, true, 0}, {kScale, true, 1}};
constexpr Operands::Place kRmsBackward[] = {{kY, false, 0},      {kX, false, 1}, {kScale, false, 2},
                                            {kWeight, false, 3}, {kDx, true, 0}, {kDWeight, true, 1}};

// Dims of x with the strides of every operand.
struct Frame {
  struct Dim {
    int64_t size;
    bool group, weight;
    Offsets strides;
  };
  int rank = 0;
  Dim dims[kMaxRank + 1] = {};
  Operands operands;

  // `group(i)` and `weight(i)` as in Dim. Only what has x's shape has its strides yet.
  template <class Group, class Weight>
  Frame(const BoundCall& call, Places places, Group group, Weight weight) : operands(call, places) {
    const TensorRef& x = *operands.tensors[kX];
    rank = x.rank;
    for (int i = 0; i < x.rank; ++i) {
      dims[i] = {x.sizes[i], group(i), weight(i), {}};
      for (NormRole role : {kX, kY, kDx}) {
        if (operands.has(role)) dims[i].strides[role] = operands.tensors[role]->strides[i];
      }
    }
  }
  // Strides of tensors whose dims are those of x that `has` chooses, in order.
  template <class Has>
  void attach(std::initializer_list<NormRole> roles, Has has) {
    for (NormRole role : roles) {
      if (!operands.has(role)) continue;
      int next = 0;
      for (int i = 0; i < rank; ++i) {
        if (has(dims[i])) dims[i].strides[role] = operands.tensors[role]->strides[next++];
      }
    }
  }
  // Weights that span the trailing dims: matched from the right.
  void attach_trailing(std::initializer_list<NormRole> roles) {
    for (NormRole role : roles) {
      if (!operands.has(role)) continue;
      const TensorRef& tensor = *operands.tensors[role];
      for (int i = 1; i <= tensor.rank; ++i) dims[rank - i].strides[role] = tensor.strides[tensor.rank - i];
    }
  }
  template <class Wanted>
  NormGrid pick(Wanted wanted) const {
    NormGrid grid;
    for (int i = 0; i < rank; ++i) {
      if (wanted(dims[i])) grid.add_dim(dims[i].size, dims[i].strides);
    }
    return grid;
  }
  NormWalk walk() {
    attach({kMean, kScale}, [](const Dim& dim) { return dim.group; });
    return {pick([](const Dim& dim) { return dim.group; }), pick([](const Dim& dim) { return !dim.group; }),
            pick([](const Dim& dim) { return dim.weight; }), pick([](const Dim& dim) { return !dim.weight; })};
  }
};

NormWalk walk_trailing(const BoundCall& call, Places places) {
  const int64_t axis = call.attrs->i("axis");
  Frame frame(call, places, [=](int i) { return i < axis; }, [=](int i) { return i >= axis; });
  frame.attach_trailing({kWeight, kBias, kDWeight, kDBias});
  return frame.walk();
}

constexpr auto kIsChannel = [](int i) { return i == 1; };

NormWalk walk_channels(const BoundCall& call, Places places) {
  Frame frame(call, places, kIsChannel, kIsChannel);
  frame.attach({kWeight, kBias, kDWeight, kDBias}, [](const Frame::Dim& dim) { return dim.weight; });
  return frame.walk();
}

// Dim 1 becomes two: the group and the channel within.
NormWalk walk_groups(const BoundCall& call, Places places) {
  Frame frame(call, places, [](int i) { return i < 1; }, kIsChannel);
  frame.attach({kWeight, kBias, kDWeight, kDBias}, [](const Frame::Dim& dim) { return dim.weight; });
  for (int i = frame.rank; i > 2; --i) frame.dims[i] = frame.dims[i - 1];
  ++frame.rank;
  Frame::Dim &outer = frame.dims[1], &inner = frame.dims[2];
  inner = outer;
  inner.size = outer.size / call.attrs->i("num_groups");
  outer.size = call.attrs->i("num_groups");
  outer.group = true;
  for (int64_t& stride : outer.strides) stride *= inner.size;
  return frame.walk();
}

int64_t grain_for(const NormGrid& members) {
  return std::max<int64_t>(1, 1024 / std::max<int64_t>(members.numel(), 1));
}

struct Statistics {
  double mean, variance;  // the mean square where not centred
};

template <bool kF64>
Statistics measure(const Operands& operands, const NormGrid& members, const Offsets& group, bool centred) {
  const double count = static_cast<double>(members.numel());
  double mean = 0, squares = 0;
  if (centred) {
    members.for_each_in_rows([&](const Offsets& at) { mean += operands.read<kF64>(kX, group, at); });
    mean /= count;
  }
  members.for_each_in_rows([&](const Offsets& at) {
    const double d = operands.read<kF64>(kX, group, at) - mean;
    squares += d * d;
  });
  return {mean, squares / count};
}

// y = (x - mean) * scale * weight + bias; also(group, statistics) is told each group's.
template <bool kF64, class Also>
KernelStatus normalise_all(const Operands& operands, const NormWalk& walk, double epsilon, bool centred, Also also) {
  const NormGrid &groups = walk.groups, &members = walk.members;
  parallel_for(groups.numel(), grain_for(members), [&](int64_t begin, int64_t end) {
    groups.for_each(begin, end, [&](int64_t position, const Offsets& group) {
      const Statistics found = measure<kF64>(operands, members, group, centred);
      const double scale = 1 / std::sqrt(found.variance + epsilon);
      if (operands.has(kY)) {
        members.for_each_in_rows([&](const Offsets& at) {
          const double normal = (operands.read<kF64>(kX, group, at) - found.mean) * scale;
          operands.write<kF64>(
              kY, group, at,
              normal * operands.read<kF64>(kWeight, group, at, 1) + operands.read<kF64>(kBias, group, at));
        });
      }
      operands.write<kF64>(kMean, group, kHere, found.mean);
      operands.write<kF64>(kScale, group, kHere, scale);
      also(position, found);
    });
  });
  return nullptr;
}

// With g = dy * weight and n = (x - mean) * scale: dx = scale * (g - [mean of g] - n * mean of g*n).
// dweight = sum of dy * n, dbias = sum of dy.
template <bool kF64>
KernelStatus differentiate_all(const Operands& operands, const NormWalk& walk, bool centred) {
  const NormGrid &groups = walk.groups, &members = walk.members;
  const double count = static_cast<double>(members.numel());
  if (operands.has(kDx)) {
    parallel_for(groups.numel(), grain_for(members), [&](int64_t begin, int64_t end) {
      groups.for_each(begin, end, [&](int64_t, const Offsets& group) {
        const double mean = operands.read<kF64>(kMean, group, kHere), scale = operands.read<kF64>(kScale, group, kHere);
        double sum = 0, dot = 0;
        members.for_each_in_rows([&](const Offsets& at) {
          const double g = operands.read<kF64>(kY, group, at) * operands.read<kF64>(kWeight, group, at, 1);
          sum += g;
          dot += g * (operands.read<kF64>(kX, group, at) - mean) * scale;
        });
        if (!centred) sum = 0;
        members.for_each_in_rows([&](const Offsets& at) {
          const double g = operands.read<kF64>(kY, group, at) * operands.read<kF64>(kWeight, group, at, 1);
          const double normal = (operands.read<kF64>(kX, group, at) - mean) * scale;
          operands.write<kF64>(kDx, group, at, scale * (g - sum / count - normal * (dot / count)));
        });
      });
    });
  }
  if (!operands.has(kDWeight) && !operands.has(kDBias)) return nullptr;
  const NormGrid &weights = walk.weights, &summed = walk.summed;
  parallel_for(weights.numel(), grain_for(summed), [&](int64_t begin, int64_t end) {
    weights.for_each(begin, end, [&](int64_t, const Offsets& weight) {
      double sum = 0, dot = 0;
      summed.for_each_in_rows([&](const Offsets& at) {
        const double g = operands.read<kF64>(kY, weight, at);
        sum += g;
        dot += g * (operands.read<kF64>(kX, weight, at) - operands.read<kF64>(kMean, weight, at)) *
               operands.read<kF64>(kScale, weight, at);
      });
      operands.write<kF64>(kDWeight, weight, kHere, dot);
      operands.write<kF64>(kDBias, weight, kHere, sum);
    });
  });
  return nullptr;
}

template <class Also>
KernelStatus normalise(const Operands& operands, const NormWalk& walk, double epsilon, bool centred, Also also) {
  return operands.are_f64() ? normalise_all<true>(operands, walk, epsilon, centred, also)
                            : normalise_all<false>(operands, walk, epsilon, centred, also);
}
KernelStatus differentiate(const Operands& operands, const NormWalk& walk, bool centred) {
  return operands.are_f64() ? differentiate_all<true>(operands, walk, centred)
                            : differentiate_all<false>(operands, walk, centred);
}

constexpr auto kNothingElse = [](int64_t, const Statistics&) {};

}  // namespace

LayerNorm::LayerNorm(const BoundCall& call)
    : NormWalk(walk_trailing(call, kForward)), epsilon(call.attrs->f("epsilon")) {}
LayerNormGrad::LayerNormGrad(const BoundCall& call) : NormWalk(walk_trailing(call, kBackward)) {}
RmsNorm::RmsNorm(const BoundCall& call)
    : NormWalk(walk_trailing(call, kRmsForward)), epsilon(call.attrs->f("epsilon")) {}
RmsNormGrad::RmsNormGrad(const BoundCall& call) : NormWalk(walk_trailing(call, kRmsBackward)) {}
GroupNorm::GroupNorm(const BoundCall& call)
    : NormWalk(walk_groups(call, kForward)), epsilon(call.attrs->f("epsilon")) {}
GroupNormGrad::GroupNormGrad(const BoundCall& call) : NormWalk(walk_groups(call, kBackward)) {}
BatchNorm::BatchNorm(const BoundCall& call)
    : NormWalk(walk_channels(call, kForward)), epsilon(call.attrs->f("epsilon")), momentum(call.attrs->f("momentum")) {}
BatchNormGrad::BatchNormGrad(const BoundCall& call) : NormWalk(walk_channels(call, kBackward)) {}

KernelStatus layer_norm(const KernelCall& call, const LayerNorm& norm) {
  return normalise({call, kForward}, norm, norm.epsilon, true, kNothingElse);
}
KernelStatus layer_norm_grad(const KernelCall& call, const LayerNormGrad& norm) {
  return differentiate({call, kBackward}, norm, true);
}

KernelStatus rms_norm(const KernelCall& call, const RmsNorm& norm) {
  return normalise({call, kRmsForward}, norm, norm.epsilon, false, kNothingElse);
}
KernelStatus rms_norm_grad(const KernelCall& call, const RmsNormGrad& norm) {
  return differentiate({call, kRmsBackward}, norm, false);
}

KernelStatus group_norm(const KernelCall& call, const GroupNorm& norm) {
  return normalise({call, kForward}, norm, norm.epsilon, true, kNothingElse);
}
KernelStatus group_norm_grad(const KernelCall& call, const GroupNormGrad& norm) {
  return differentiate({call, kBackward}, norm, true);
}

KernelStatus batch_norm(const KernelCall& call, const BatchNorm& norm) {
  const double count = static_cast<double>(norm.members.numel());
  auto update = [&](size_t old_index, size_t new_index, int64_t channel, double batch) {
    const TensorRef *old_value = input(call, old_index), *new_value = output(call, new_index);
    if (!old_value || !new_value) return;
    const double old = get(*old_value, channel * old_value->strides[0]);
    // An empty batch changes nothing, as in PyTorch.
    const double mixed = count == 0 ? old : (1 - norm.momentum) * old + norm.momentum * batch;
    set(*new_value, channel * new_value->strides[0], mixed);
  };
  return normalise({call, kForward}, norm, norm.epsilon, true, [&](int64_t channel, const Statistics& found) {
    update(3, 3, channel, found.mean);
    update(4, 4, channel, found.variance * count / (count - 1));
  });
}

KernelStatus batch_norm_grad(const KernelCall& call, const BatchNormGrad& norm) {
  return differentiate({call, kBackward}, norm, true);
}

}  // namespace lowtide::reference
