#include "ops/packed_heads.h"

namespace lowtide {

Shape packed_heads(const Shape& heads, int64_t axis) {
  Shape packed = {heads[0], heads[2], heads[1], heads[3]};
  packed.insert(packed.begin() + axis, 3);
  return packed;
}

Shape heads_of_packed(const Shape& packed, int64_t axis) {
  return {packed[0], packed[axis == 2 ? 3 : 2], packed[1], packed[4]};
}

std::array<Strided, 3> parts_of_packed_heads(const Shape& packed, int64_t axis) {
  const Shape strides = row_major_strides(packed);
  std::array<Strided, 3> parts;
  for (size_t i = 0; i < parts.size(); ++i)
    parts[i] = {static_cast<int64_t>(i) * strides[static_cast<size_t>(axis)], heads_of_packed(strides, axis)};
  return parts;
}

}  // namespace lowtide
