#include "base/check.h"

namespace lowtide {

void throw_internal_error(const char* file, int line, const char* condition, const std::string& message) {
  throw InternalError(concat("lowtide internal error (a bug of lowtide, please report it): ", message,
                             condition[0] ? " [" : "", condition, condition[0] ? "]" : "", " at ", file, ":", line));
}

}  // namespace lowtide
