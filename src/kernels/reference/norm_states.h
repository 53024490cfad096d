// States of normalisations: how their operands are walked. See states.h.
#pragma once

#include "kernels/reference/states.h"

namespace lowtide::reference {

enum NormRole { kX, kY, kDx, kWeight, kBias, kMean, kScale, kDWeight, kDBias, kNormRoles };
using NormGrid = Grid<kNormRoles>;

// Dims of x by what they pick: the group that shares statistics, the weight.
struct NormWalk {
  NormGrid groups, members;  // that pick the group, and the others
  NormGrid weights, summed;  // that pick the weight, and the others
};

struct LayerNorm : NormWalk {
  explicit LayerNorm(const BoundCall& call);
  double epsilon;
};
struct LayerNormGrad : NormWalk {
  explicit LayerNormGrad(const BoundCall& call);
};
struct RmsNorm : NormWalk {
  explicit RmsNorm(const BoundCall& call);
  double epsilon;
};
struct RmsNormGrad : NormWalk {
  explicit RmsNormGrad(const BoundCall& call);
};
struct GroupNorm : NormWalk {
  explicit GroupNorm(const BoundCall& call);
  double epsilon;
};
struct GroupNormGrad : NormWalk {
  explicit GroupNormGrad(const BoundCall& call);
};
struct BatchNorm : NormWalk {
  explicit BatchNorm(const BoundCall& call);
  double epsilon, momentum;
};
struct BatchNormGrad : NormWalk {
  explicit BatchNormGrad(const BoundCall& call);
};

}  // namespace lowtide::reference
