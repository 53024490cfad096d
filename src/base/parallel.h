// One parallel_for for everybody. By default it runs serially; the process that has PyTorch loaded installs
// PyTorch's pool (torch_parallel_for), a process without it the small pool of base/thread_pool.
// A second pool beside OpenMP's makes both two to four times slower, so nobody else starts threads.
#pragma once

#include <cstdint>
#include <type_traits>

namespace lowtide {

using ParallelBody = void (*)(int64_t begin, int64_t end, void* context);
using ParallelFor = void (*)(int64_t begin, int64_t end, int64_t grain, ParallelBody body, void* context);

// `count`: how many threads there are now, for who begins a step; null: always `threads`.
void set_parallel_for(ParallelFor function, int threads, int (*count)() = nullptr);
int parallel_threads();
// Their number may have been changed since: asked where a step begins, and the same to its end.
int refresh_parallel_threads();
void parallel_run(int64_t begin, int64_t end, int64_t grain, ParallelBody body, void* context);

// Calls body(begin, end) over chunks of [0, n), none smaller than `grain` but the last. The body must not throw.
// Which chunk runs where must never change a result: a sum over chunks adds in an order that the sizes alone decide.
template <class Body>
void parallel_for(int64_t n, int64_t grain, Body&& body) {
  if (n <= 0) return;
  if (n <= grain) {
    body(int64_t{0}, n);
    return;
  }
  parallel_run(
      0, n, grain,
      [](int64_t begin, int64_t end, void* context) {
        (*static_cast<std::remove_reference_t<Body>*>(context))(begin, end);
      },
      const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace lowtide
