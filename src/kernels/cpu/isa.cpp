#include "kernels/cpu/isa.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "base/check.h"

namespace lowtide::cpu {
namespace {

constexpr Isa kAll[] = {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512};

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

// Here and not in the Python package, so that it holds for C++ programs and tests too.
Isa limit_of_environment() {
  const char* variable = std::getenv("LOWTIDE_ISA");
  const std::string_view text = variable != nullptr ? variable : "";
  if (text.empty()) return Isa::kAvx512;
  for (Isa each : kAll)
    if (text == name(each)) return each;
  LT_USER_FAIL(ErrorKind::kInvalidArgument, "LOWTIDE_ISA is ", text, "; expected portable, avx2 or avx512");
}

Isa best() {
  static const Isa found = std::min(detect(), limit_of_environment());
  return found;
}

// Process-wide, like the CPU itself.
std::atomic<Isa> limit{Isa::kAvx512};

}  // namespace

std::string_view name(Isa isa) {
  switch (isa) {
    case Isa::kBaseline: return "portable";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
  }
  return "";
}

Isa isa() { return std::min(limit.load(std::memory_order_relaxed), best()); }

void limit_isa(Isa highest) { limit = highest; }

std::vector<Isa> runnable_isas() {
  std::vector<Isa> all;
  for (Isa each : kAll) {
    if (each <= best()) all.push_back(each);
  }
  return all;
}

}  // namespace lowtide::cpu
