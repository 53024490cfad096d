#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/parallel.h"

namespace lowtide {

namespace {

// Workers sleep on a condition variable; a job is cut into equal chunks that whoever is free takes.
class ThreadPool {
 public:
  explicit ThreadPool(int threads) : threads_(threads) {
    for (int i = 1; i < threads; ++i) std::thread([this] { work(); }).detach();
  }

  int threads() const { return threads_; }

  void run(int64_t begin, int64_t end, int64_t grain, ParallelBody body, void* context) {
    // A loop inside a loop, or two at once from different threads: the second runs alone.
    if (inside_ || !running_.try_lock()) return body(begin, end, context);
    const int64_t chunks = std::clamp<int64_t>((end - begin + grain - 1) / std::max<int64_t>(grain, 1), 1, threads_);
    {
      std::lock_guard lock(mutex_);
      body_ = body;
      context_ = context;
      begin_ = begin;
      end_ = end;
      chunks_ = chunks;
      next_ = 0;
      pending_ = chunks;
    }
    wake_.notify_all();
    take_chunks();
    {
      std::unique_lock lock(mutex_);
      done_.wait(lock, [this] { return pending_ == 0; });
      chunks_ = 0;
    }
    running_.unlock();
  }

 private:
  void work() {
    inside_ = true;
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return next_ < chunks_; });
      }
      take_chunks();
    }
  }

  void take_chunks() {
    const bool was_inside = inside_;
    inside_ = true;
    for (;;) {
      int64_t first, last;
      ParallelBody body;
      void* context;
      {
        std::lock_guard lock(mutex_);
        if (next_ >= chunks_) break;
        const int64_t chunk = next_++, size = end_ - begin_;
        first = begin_ + size * chunk / chunks_;
        last = begin_ + size * (chunk + 1) / chunks_;
        body = body_;
        context = context_;
      }
      body(first, last, context);
      std::lock_guard lock(mutex_);
      if (--pending_ == 0) done_.notify_all();
    }
    inside_ = was_inside;
  }

  static thread_local bool inside_;
  const int threads_;
  std::mutex running_, mutex_;
  std::condition_variable wake_, done_;
  ParallelBody body_ = nullptr;
  void* context_ = nullptr;
  int64_t begin_ = 0, end_ = 0, chunks_ = 0, next_ = 0, pending_ = 0;
};

thread_local bool ThreadPool::inside_ = false;

}  // namespace

void install_thread_pool(int threads) {
  // Lives as long as the process: its workers are detached.
  static ThreadPool* pool = new ThreadPool(std::max(threads, 1));
  set_parallel_for([](int64_t begin, int64_t end, int64_t grain, ParallelBody body,
                      void* context) { pool->run(begin, end, grain, body, context); },
                   pool->threads());
}

}  // namespace lowtide
