#include "kernels/cpu/packing.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/parallel.h"
#include "kernels/cpu/packing_table.h"

namespace lowtide::cpu {

namespace {

// A multiple of 8 elements, so that no two blocks share a byte.
constexpr int64_t kBlock = 1 << 15;

// Runs `loop` over blocks of n elements that take `from_bits` and `to_bits` each.
void run(PackingTable::Loop loop, const void* from, int64_t from_bits, void* to, int64_t to_bits, int64_t n,
         int64_t low) {
  LT_CHECK(loop != nullptr, "no packing of ", from_bits, " bits into ", to_bits);
  parallel_for((n + kBlock - 1) / kBlock, 1, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kBlock;
    loop(static_cast<const char*>(from) + first / 8 * from_bits, static_cast<char*>(to) + first / 8 * to_bits,
         std::min(n, end * kBlock) - first, low);
  });
}

int log2_of(int64_t value) { return std::countr_zero(static_cast<uint64_t>(value)); }

}  // namespace

void pack_bits(const void* src, int64_t n, int64_t element_bytes, int64_t bits, int64_t low, void* packed) {
  run(packing_table().pack[log2_of(element_bytes)][log2_of(bits)], src, 8 * element_bytes, packed, bits, n, low);
}

void unpack_bits(const void* packed, int64_t n, int64_t element_bytes, int64_t bits, int64_t low, void* dst) {
  run(packing_table().unpack[log2_of(element_bytes)][log2_of(bits)], packed, bits, dst, 8 * element_bytes, n, low);
}

}  // namespace lowtide::cpu
