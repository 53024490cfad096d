// User mistakes and our bugs never look alike:
//   LT_USER_CHECK(kind, condition, pieces…) throws Error of that kind: the message says what was expected, found, and
//   where. LT_CHECK(condition, pieces…)            throws InternalError: a bug of lowtide.
#pragma once

#include <stdexcept>
#include <string>

#include "base/text.h"

namespace lowtide {

enum class ErrorKind {
  kInvalidArgument,  // ValueError: a shape, dtype, option or call that cannot be right
  kInvalidGraph,     // lowtide.GraphError: a text or captured graph that breaks the grammar or an invariant
  kInvalidProgram,   // lowtide.ProgramError: a saved Program that is damaged or of another version
  kUnsupported,      // lowtide.UnsupportedError: legal in PyTorch, not (yet) in the engine; ORTModule falls back
  kOutOfMemory,      // MemoryError
  kInterrupted,      // KeyboardInterrupt
  kRuntime,          // RuntimeError: a kernel or PyTorch refused at run time
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void throw_internal_error(const char* file, int line, const char* condition, const std::string& message);

}  // namespace lowtide

#define LT_CHECK(condition, ...)                                                                       \
  do {                                                                                                 \
    if (!(condition)) [[unlikely]]                                                                     \
      ::lowtide::throw_internal_error(__FILE__, __LINE__, #condition, ::lowtide::concat(__VA_ARGS__)); \
  } while (false)

#define LT_FAIL(...) ::lowtide::throw_internal_error(__FILE__, __LINE__, "", ::lowtide::concat(__VA_ARGS__))

#define LT_USER_CHECK(kind, condition, ...)                           \
  do {                                                                \
    if (!(condition)) [[unlikely]]                                    \
      throw ::lowtide::Error((kind), ::lowtide::concat(__VA_ARGS__)); \
  } while (false)

#define LT_USER_FAIL(kind, ...) throw ::lowtide::Error((kind), ::lowtide::concat(__VA_ARGS__))
