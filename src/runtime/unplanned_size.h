// What a step throws that finds a size outside of the range that is planned for it: the data of one call, not a fault
// of the program. Its kind is that of whatever fails in a step.
#pragma once

#include "base/check.h"

namespace lowtide {

class UnplannedSize : public Error {
 public:
  explicit UnplannedSize(const std::string& message) : Error(ErrorKind::kRuntime, message) {}
};

}  // namespace lowtide
