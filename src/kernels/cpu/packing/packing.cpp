// Integers in fewer bits, and back, on dense memory:
//   packed = the elements of x (1, 2, 4, 8 bytes), each minus `low` modulo 2^bits; bits is 1, 2, 4, 8, 16 or 32 and at
//   most those of an element; bits past the last element are 0. Back: y = low + what was stored, modulo y's width.
#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/parallel.h"
#include "kernels/cpu/packing/packing_table.h"
#include "kernels/kernel_lines.h"
#include "kernels/rooms.h"

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

struct Bits {
  explicit Bits(const BoundCall& call) : bits(call.attrs->i("bits")), low(call.attrs->i("low")) {}
  int64_t bits, low;
};

KernelStatus pack_bits(const KernelCall& call, const Bits& packed) {
  const TensorRef& x = call.inputs[0];
  const int64_t bytes = size_bytes(x.dtype), bits = packed.bits;
  run(packing_table().pack[log2_of(bytes)][log2_of(bits)], x.data, 8 * bytes, call.outputs[0].data, bits, x.numel(),
      packed.low);
  return nullptr;
}

KernelStatus unpack_bits(const KernelCall& call, const Bits& packed) {
  const TensorRef& y = call.outputs[0];
  const int64_t bytes = size_bytes(y.dtype), bits = packed.bits;
  run(packing_table().unpack[log2_of(bytes)][log2_of(bits)], call.inputs[0].data, bits, y.data, 8 * bytes, y.numel(),
      packed.low);
  return nullptr;
}

}  // namespace

std::span<const Kernel> packing_kernels() {
  static constexpr Kernel kernels[] = {
#include "kernels/cpu/packing/list.inc"
  };
  return kernels;
}

}  // namespace lowtide::cpu
