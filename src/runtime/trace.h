// A Chrome trace of steps.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace lowtide {

class Trace {
 public:
  using Clock = std::chrono::steady_clock;
  void add(std::string name, std::string kernel, Clock::time_point begin, Clock::time_point end) {
    events_.push_back({std::move(name), std::move(kernel), begin, end});
  }
  std::string json() const;

 private:
  struct Event {
    std::string name, kernel;
    Clock::time_point begin, end;
  };
  std::vector<Event> events_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace lowtide
