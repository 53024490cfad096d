#include "memory/strategy.h"

#include "base/check.h"

namespace lowtide {

std::string_view name(OptimizationType type) {
  switch (type) {
    case OptimizationType::kNone: return "None";
    case OptimizationType::kRecompute: return "Recompute";
    case OptimizationType::kRecomputeWithCompromise: return "RecomputeWithCompromise";
    case OptimizationType::kCompress: return "Compress";
  }
  LT_FAIL("an optimization type of unknown code");
}

}  // namespace lowtide
