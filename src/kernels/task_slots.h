// Tasks of uneven length, each needing scratch of its own.
#pragma once

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "base/parallel.h"

namespace lowtide {

// Calls task(index, own) for every index in [0, tasks) on as many threads as there is scratch for, one if the work is
// `small` (under some 30 us); a thread takes the next task when it has done one. `own` is room for slot_numbers. What a
// task computes must not depend on who runs it.
template <class Number = float, class Task>
void run_tasks(int64_t tasks, int64_t slot_numbers, void* scratch, int64_t scratch_bytes, bool small, Task task) {
  const int64_t slot_bytes = slot_numbers * static_cast<int64_t>(sizeof(Number));
  const int64_t slots = std::min(tasks, small ? 1 : scratch_bytes / slot_bytes);
  LT_CHECK(tasks == 0 || scratch_bytes >= slot_bytes, "kernel got ", scratch_bytes, " bytes of scratch, needs ",
           slot_bytes);
  std::atomic<int64_t> next{0};
  parallel_for(slots, 1, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      Number* own = static_cast<Number*>(scratch) + slot * slot_numbers;
      for (int64_t each = next++; each < tasks; each = next++) task(each, own);
    }
  });
}

}  // namespace lowtide
