// Forwards that wait for their backward: how many of one session do so at once, and what they hold.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace lowtide {

// A step begins with a forward when none is pending. Forwards may go from any thread, one begins at a time.
class PendingForwards : public std::enable_shared_from_this<PendingForwards> {
 public:
  // One of them, as long as it lives.
  class Mark {
   public:
    explicit Mark(std::shared_ptr<PendingForwards> all) : all_(std::move(all)) { ++all_->now_; }
    ~Mark() {
      --all_->now_;
      all_->held_bytes_ -= held_bytes_;
    }
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;
    void hold(int64_t bytes) {
      held_bytes_ += bytes;
      all_->held_bytes_ += bytes;
    }

   private:
    const std::shared_ptr<PendingForwards> all_;
    int64_t held_bytes_ = 0;
  };

  std::shared_ptr<Mark> begin() {
    auto mark = std::make_shared<Mark>(shared_from_this());
    const int64_t now = now_;
    if (now == 1) last_most_ = std::exchange(most_, 1);
    most_ = std::max(most_, now);
    return mark;
  }
  int64_t now() const { return now_; }
  int64_t held_bytes() const { return held_bytes_; }
  int64_t most_of_step() const { return most_; }
  // The most at once, in this step or the one before.
  int64_t most() const { return std::max(most_, last_most_); }

 private:
  std::atomic<int64_t> now_ = 0, held_bytes_ = 0;
  int64_t most_ = 1, last_most_ = 1;
};

}  // namespace lowtide
