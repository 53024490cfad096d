#include "kernels/cpu/isa.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>

#if defined(__linux__) && defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "base/check.h"

namespace lowtide::cpu {
namespace {

constexpr Isa kAll[] = {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx};

// Linux gives the tiles' registers to processes that ask for them, once for all threads.
bool takes_tiles() {
#if defined(__linux__) && defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kTiles = 1u << 24, kTilesOfBf16 = 1u << 22;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || !(d & kTiles) || !(d & kTilesOfBf16)) return false;
  constexpr long kAskForState = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
#else
  return false;
#endif
}

Isa detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c")) {
    return Isa::kBaseline;
  }
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (!wide) return Isa::kAvx2;
  if (!__builtin_cpu_supports("avx512bf16")) return Isa::kAvx512;
  return takes_tiles() ? Isa::kAmx : Isa::kAvx512Bf16;
#else
  return Isa::kBaseline;
#endif
}

// Here and not in the Python package, so that it holds for C++ programs and tests too.
Isa limit_of_environment() {
  const char* variable = std::getenv("LOWTIDE_ISA");
  const std::string_view text = variable != nullptr ? variable : "";
  if (text.empty()) return kHighestIsa;
  for (Isa each : kAll)
    if (text == name(each)) return each;
  LT_USER_FAIL(ErrorKind::kInvalidArgument, "LOWTIDE_ISA is ", text,
               "; expected portable, avx2, avx512, avx512_bf16 or amx");
}

Isa best() {
  static const Isa found = std::min(detect(), limit_of_environment());
  return found;
}

// Process-wide, like the CPU itself.
std::atomic<Isa> limit{kHighestIsa};

}  // namespace

std::string_view name(Isa isa) {
  switch (isa) {
    case Isa::kBaseline: return "portable";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
    case Isa::kAvx512Bf16: return "avx512_bf16";
    case Isa::kAmx: return "amx";
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
