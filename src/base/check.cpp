#include "base/check.h"

#include "base/checked.h"

namespace lowtide {

void throw_internal_error(const char* file, int line, const char* condition, const std::string& message) {
  throw InternalError(concat("lowtide internal error (a bug of lowtide, please report it): ", message,
                             condition[0] ? " [" : "", condition, condition[0] ? "]" : "", " at ", file, ":", line));
}

void fail_size_overflow(int64_t a, int64_t b) {
  LT_USER_FAIL(ErrorKind::kInvalidArgument, "a size leaves 64 bits: from ", a, " and ", b);
}

}  // namespace lowtide
