#include "base/parallel.h"

#include <atomic>

namespace lowtide {

// The one process-wide setting: threads belong to the process, not to a session.
static std::atomic<ParallelFor> installed{nullptr};
static std::atomic<int> installed_threads{1};
static std::atomic<int (*)()> installed_count{nullptr};

void set_parallel_for(ParallelFor function, int threads, int (*count)()) {
  installed = function;
  installed_count = count;
  installed_threads = threads < 1 ? 1 : threads;
}

int parallel_threads() { return installed_threads; }

int refresh_parallel_threads() {
  const auto count = installed_count.load(std::memory_order_relaxed);
  if (count != nullptr) {
    if (const int now = count(); now != installed_threads) installed_threads = now < 1 ? 1 : now;
  }
  return installed_threads;
}

void parallel_run(int64_t begin, int64_t end, int64_t grain, ParallelBody body, void* context) {
  ParallelFor function = installed.load(std::memory_order_relaxed);
  if (function == nullptr) {
    body(begin, end, context);
  } else {
    function(begin, end, grain, body, context);
  }
}

}  // namespace lowtide
