// Stashed integers and masks wait for backward in the fewest bits that hold every value which the
// graph can give them (ops/value_range.h). Lossless: no observed value ever decides a width.
//
//   %i = ArgMax %x                          %i = ArgMax %x
//   ..                                      %i_packed = PackBits(bits=8) %i
//   .. = YieldOp ..                    →    .. = YieldOp ..
//   %d = GatherGrad %dy, %i                 %i_unpacked = UnpackBits(bits=8, to=i64) %i_packed
//                                           %d = GatherGrad %dy, %i_unpacked
#pragma once

#include "memory/compress/width.h"
#include "memory/strategy.h"

namespace lowtide {

// Run it after the strategies whose clones read what is given up here: they read what is unpacked then, too. A value
// that backward does not read any more stays as it is.
void compress_stashes(Graph& graph, const MemoryContext& context, std::span<const Candidate* const> chosen);

// Has the candidate, of the value's node, pack the value too.
void add_packed(Candidate& candidate, const Graph& graph, ValueId value, const Width& width);

}  // namespace lowtide
