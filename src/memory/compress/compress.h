// The second strategy: stashed integers and masks wait for backward in the fewest bits that hold every value which the
// graph can give them (ops/value_range.h). Lossless: no observed value ever decides a width.
//
//   %i = ArgMax %x                          %i = ArgMax %x
//   ..                                      %i_packed = PackBits(bits=8) %i
//   .. = YieldOp ..                    →    .. = YieldOp ..
//   %d = GatherGrad %dy, %i                 %i_unpacked = UnpackBits(bits=8, to=i64) %i_packed
//                                           %d = GatherGrad %dy, %i_unpacked
#pragma once

#include "memory/strategy.h"

namespace lowtide {

class Compress : public Strategy {
 public:
  // One candidate per node, of all its stashed outputs that shrink.
  std::vector<Candidate> propose(const MemoryContext& context) const override;
  // Run it after the strategies whose clones read what is given up here: they read what is unpacked then, too. A value
  // that backward does not read any more stays as it is.
  void apply(Graph& graph, const MemoryContext& context, std::span<const Candidate* const> chosen) const override;
};

}  // namespace lowtide
