#pragma once

#include <csignal>

namespace lowtide::bindings {

// While it lives in the main thread, Ctrl-C also sets the engine's stop flag; then whatever handler was there runs
// (Python's).
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

 private:
  bool watching_ = false;
};

}  // namespace lowtide::bindings
