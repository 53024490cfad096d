// Integers in fewer bits: element i of x, in row-major order, has bits [i*bits, (i + 1)*bits) of p, little endian.
#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"
#include "kernels/walk.h"

namespace lowtide::reference {

namespace {

// The `bits` bits of element `index`; those that lie in one byte share it.
struct Place {
  int64_t byte;
  int shift;
};
Place place_of(int64_t index, int64_t bits) { return {index * bits / 8, static_cast<int>(index * bits % 8)}; }

}  // namespace

KernelStatus pack_bits(const KernelCall& call, const PackedFields& fields) {
  const TensorRef &x = call.inputs[0], &p = call.outputs[0];
  const int64_t bits = fields.bits;
  const uint64_t low = fields.low, mask = fields.mask;
  for (int64_t i = 0; i < p.numel(); ++i) set_int(p, i * p.strides[0], 0);
  // Serial: neighbours share bytes.
  fields.values.for_each([&](int64_t index, const auto& offsets) {
    const uint64_t stored = (static_cast<uint64_t>(get_int(x, offsets[0])) - low) & mask;
    const Place place = place_of(index, bits);
    for (int64_t byte = 0; byte < (bits + 7) / 8; ++byte) {
      const int64_t offset = (place.byte + byte) * p.strides[0];
      const uint64_t part = (stored >> (8 * byte) << place.shift) & 0xff;
      set_int(p, offset, get_int(p, offset) | static_cast<int64_t>(part));
    }
  });
  return nullptr;
}

KernelStatus unpack_bits(const KernelCall& call, const UnpackedFields& fields) {
  const TensorRef &p = call.inputs[0], &y = call.outputs[0];
  const int64_t bits = fields.bits;
  const uint64_t low = fields.low, mask = fields.mask;
  fields.values.for_each([&](int64_t index, const auto& offsets) {
    const Place place = place_of(index, bits);
    uint64_t stored = 0;
    for (int64_t byte = 0; byte < (bits + 7) / 8; ++byte)
      stored |= static_cast<uint64_t>(get_int(p, (place.byte + byte) * p.strides[0])) << (8 * byte);
    set_int(y, offsets[0], static_cast<int64_t>(low + ((stored >> place.shift) & mask)));
  });
  return nullptr;
}

}  // namespace lowtide::reference
