#include "kernels/cpu/isa.h"

#include <atomic>

namespace lowtide::cpu {
namespace {

Isa detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c")) {
    return Isa::kBaseline;
  }
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return wide ? Isa::kAvx512 : Isa::kAvx2;
#else
  return Isa::kBaseline;
#endif
}

const Isa detected = detect();
// Process-wide, like the CPU itself.
std::atomic<Isa> chosen{detected};

}  // namespace

Isa isa() { return chosen.load(std::memory_order_relaxed); }

void limit_isa(Isa highest) { chosen = highest < detected ? highest : detected; }

std::vector<Isa> runnable_isas() {
  std::vector<Isa> all;
  for (Isa each : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512}) {
    if (each <= detected) all.push_back(each);
  }
  return all;
}

}  // namespace lowtide::cpu
