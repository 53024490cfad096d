// Which instruction set the fast CPU kernels use. Files named *_isa.cpp are compiled once per set, in a namespace of
// that name, and hand out one table of functions each; code outside picks a table by isa() at run time.
//
// A file *_isa.cpp must not use inline functions of other headers that the compiler may leave un-inlined (the linker
// would keep one copy for all sets, perhaps the AVX-512 one): pointers, sizes, simd.h and builtins only.
#pragma once

#include <string_view>
#include <vector>

namespace lowtide::cpu {

// Each holds those before it. The last two multiply bf16 (LT_BF16_TABLE); all else of theirs is that of avx512.
enum class Isa { kBaseline, kAvx2, kAvx512, kAvx512Bf16, kAmx };
constexpr Isa kHighestIsa = Isa::kAmx;

std::string_view name(Isa isa);  // portable, avx2, avx512, avx512_bf16, amx

// The best set of this CPU, at most LOWTIDE_ISA and the limit; Error(kInvalidArgument) where LOWTIDE_ISA names no set.
// The variable is read once.
Isa isa();
// Lowers (or lifts) the limit of this process; results of different sets may differ in the last bits.
void limit_isa(Isa highest);
// All sets that this CPU can run and LOWTIDE_ISA allows, baseline first.
std::vector<Isa> runnable_isas();

#if defined(__x86_64__)
#define LT_ISA_TABLES(Table, table)         \
  namespace baseline {                      \
  extern const Table table;                 \
  }                                         \
  namespace avx2 {                          \
  extern const Table table;                 \
  }                                         \
  namespace avx512 {                        \
  extern const Table table;                 \
  }                                         \
  inline const Table& table() {             \
    switch (isa()) {                        \
      case Isa::kBaseline: break;           \
      case Isa::kAvx2: return avx2::table;  \
      case Isa::kAvx512:                    \
      case Isa::kAvx512Bf16:                \
      case Isa::kAmx: return avx512::table; \
    }                                       \
    return baseline::table;                 \
  }
// Null where the set has no products of bf16.
#define LT_BF16_TABLE(Table, table)                            \
  namespace avx512_bf16 {                                      \
  extern const Table table;                                    \
  }                                                            \
  namespace amx {                                              \
  extern const Table table;                                    \
  }                                                            \
  inline const Table* table() {                                \
    if (isa() == Isa::kAmx) return &amx::table;                \
    if (isa() == Isa::kAvx512Bf16) return &avx512_bf16::table; \
    return nullptr;                                            \
  }
#else
#define LT_ISA_TABLES(Table, table) \
  namespace baseline {              \
  extern const Table table;         \
  }                                 \
  inline const Table& table() { return baseline::table; }
#define LT_BF16_TABLE(Table, table) \
  inline const Table* table() { return nullptr; }
#endif

}  // namespace lowtide::cpu
