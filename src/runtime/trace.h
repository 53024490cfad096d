// A Chrome trace of steps.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "runtime/hooks.h"

namespace lowtide {

// Of the steps that ran between its hooks; their times are of the step alone.
class Trace {
 public:
  // Valid while the trace is there.
  StepHooks hooks();
  std::string json() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Event {
    std::string name, kernel;
    int32_t step = 0;  // of the program
    Clock::time_point begin, end;
  };
  std::vector<Event> events_;
  Clock::time_point start_ = Clock::now(), step_begin_;
};

}  // namespace lowtide
