// What packing_isa.cpp hands to packing.cpp: serial loops, by log2 of the element's bytes and log2 of the bits.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace lowtide::cpu {

struct PackingTable {
  using Loop = void (*)(const void* from, void* to, int64_t n, int64_t low);
  Loop pack[4][6];  // nullptr where the bits are more than the element's
  Loop unpack[4][6];
};

LT_ISA_TABLES(PackingTable, packing_table)

}  // namespace lowtide::cpu
